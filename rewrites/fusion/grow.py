"""Region growth: from a seed to the largest region that is convex, legal and not wasteful, in a deterministic order.

The seed is the first free node in topological order that computes something. Consumers and producers of the region's
nodes are tried again and again, nearest in order first, until none can be added. Growth is bounded by `MAX_NODES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from tilegraph.graph import GraphView, Reach
from tilegraph.ops.lower import kind_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.fusion.legal import Candidate, elements, examine, work

MAX_NODES = 96
_CHEAP = 4.0  # a producer whose recomputation costs more than this per element saved is left alone

Refuse = Callable[[ir.Node, str], None]


def grow(seed: ir.Node, view: GraphView, reach: Reach[ir.Node], free: Callable[[ir.Node], bool],
         opsets: Mapping[str, int], refuse: Refuse) -> Candidate | None:
    """The region around `seed`, or None (with the reason given to `refuse`) if the seed alone cannot be a kernel."""
    try:
        best = examine([seed], view, opsets)
    except Decline as reason:
        refuse(seed, reason.reason)
        return None
    tried: set[tuple[ir.Node, int]] = set()
    reasons: dict[ir.Node, str] = {}
    changed = True
    while changed and len(best.nodes) < MAX_NODES:
        changed = False
        for node in _neighbours(best, view):
            if (node, len(best.nodes)) in tried or not free(node) or kind_of(node) is None:
                continue
            tried.add((node, len(best.nodes)))
            if not reach.is_convex([*best.nodes, node]):
                reasons[node] = "a path through other nodes leaves the region and comes back"
                continue
            try:
                wider = examine([*best.nodes, node], view, opsets)
                _not_wasteful(best, wider, node)
            except Decline as reason:
                reasons[node] = reason.reason
                continue
            best, changed = wider, True
            break
    for node, reason in reasons.items():
        if node not in best.nodes:
            refuse(node, f"not joined to the region of {seed.name}: {reason}")
    return best


def _neighbours(region: Candidate, view: GraphView) -> list[ir.Node]:
    """Consumers after the region's nodes first, then producers, both in order."""
    members = set(region.nodes)
    after = {n for node in region.nodes for n in view.consumers(node)} - members
    before = {n for node in region.nodes for n in view.producers(node)} - members
    return sorted(before, key=lambda n: -view.order[n]) + sorted(after - before, key=view.order.__getitem__)


def _not_wasteful(before: Candidate, after: Candidate, node: ir.Node) -> None:
    """Refuses a producer that the region would evaluate many times over because it broadcasts the result."""
    made = max((elements(v) for v in node.outputs), default=0)
    extra = work(after.space) - work(before.space)
    if made and extra * 16 / made > _CHEAP * 16 and extra > 4096:
        raise Decline(f"it would be recomputed: {extra:.0f} vector instructions for {made} elements")
