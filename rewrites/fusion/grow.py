"""Region growth: from a seed to the largest region that is convex, legal and not wasteful, in a deterministic order.

The seed is the first free node in topological order that computes something. Consumers and producers of the region's
nodes are tried again and again, nearest in order first, until none can be added. Growth is bounded by `MAX_NODES`,
and so are the tries of a node that fits no better than before (the parameters of a training step are all neighbours of
the scale of its gradients: docs/decisions.md has what retrying each after every step costs).
A view that others read too is copied into the region: it costs nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from tilegraph.graph import GraphView, Reach
from tilegraph.ops.lower import kind_of
from tilegraph.ops.prims import Decline
from tilegraph.ops.space import Space, crossed, uneven
from tilegraph.rewrites.fusion.copies import Copies
from tilegraph.rewrites.fusion.legal import Candidate, examine, work
from tilegraph.rewrites.fusion.verdicts import Verdicts

MAX_NODES = 96
_BLOCKS = frozenset({"DepthToSpace", "SpaceToDepth"})  # ONNX Runtime moves them element by element, too
_TRIES = 8  # of a node, until another of its neighbours has joined; models needed up to 6 (docs/decisions.md)
_SLACK = 4096.0  # vector instructions: recomputing up to this much is cheaper than a value of its own

Refuse = Callable[[ir.Node, str], None]


def grow(seed: ir.Node, view: GraphView, reach: Reach[ir.Node], free: Callable[[ir.Node], bool],
         verdicts: Verdicts[Space], refuse: Refuse, copies: Copies | None = None) -> Candidate | None:
    """The region around `seed`, or None (with the reason given to `refuse`) if the seed alone cannot be a kernel.

    Only nodes that are `free` join it, as members or as clones: what an earlier region took leaves the graph.
    `copies`: what earlier regions hold copies of.
    """
    copies = copies or Copies()
    try:
        best = examine([seed], view, verdicts, copies=copies)
    except Decline as reason:
        refuse(seed, reason.reason)
        return None
    weights: dict[ir.Node, float] = {}

    def alone(node: ir.Node) -> float:
        if node not in weights:
            try:
                weights[node] = _evaluations(examine([node], view, verdicts).space)
            except Decline:
                weights[node] = float("inf") if kind_of(node) != "view" else 0.0
        return weights[node]

    tried: set[tuple[ir.Node, int]] = set()
    tries: Counter[tuple[ir.Node, int]] = Counter()  # by how many of its neighbours are in the region
    reasons: dict[ir.Node, str] = {}
    changed = True
    while changed and len(best.nodes) < MAX_NODES:
        changed = False
        for node in _neighbours(best, view):
            if (node, len(best.nodes)) in tried or kind_of(node) is None or not free(node):
                continue
            tried.add((node, len(best.nodes)))
            clones = best.clones
            if _shared_view(node, best, view):
                clones = clones | {node}
            elif not reach.is_convex([n for n in (*best.nodes, node) if n not in clones]):
                reasons[node] = "a path through other nodes leaves the region and comes back"
                continue
            near = (node, sum(n in best.nodes for n in (*view.consumers(node), *view.producers(node))))
            if tries[near] == _TRIES:
                continue
            tries[near] += 1
            try:
                wider = examine([*best.nodes, node], view, verdicts, clones, copies)
                _not_wasteful(best, wider, node, alone(node))
            except Decline as reason:
                reasons[node] = reason.reason
                continue
            best, changed = _adopt(wider, view, copies), True
            break
    for node, why in reasons.items():
        if node not in best.nodes:
            refuse(node, f"not joined to the region of {seed.name}: {why}")
    return best


def _adopt(region: Candidate, view: GraphView, copies: Copies) -> Candidate:
    """Clones that nobody outside reads any more become members."""
    while True:
        members = set(region.nodes) - region.clones
        kept = frozenset(n for n in region.clones if _read_outside(n, members, view)
                         or any(copies.read(v) for v in n.outputs))
        if kept == region.clones:
            return region
        region = replace(region, clones=kept)


def _shared_view(node: ir.Node, region: Candidate, view: GraphView) -> bool:
    """Whether `node` only moves elements, feeds the region, and something else too: then the region takes a copy."""
    if kind_of(node) not in ("view", "generator") or not any(n in region.nodes for n in view.consumers(node)):
        return False
    return _read_outside(node, set(region.nodes) - region.clones, view)


def _read_outside(node: ir.Node, members: set[ir.Node], view: GraphView) -> bool:
    return any(v in view.outputs or any(u not in members for u in view.users(v)) for v in node.outputs)


def _neighbours(region: Candidate, view: GraphView) -> list[ir.Node]:
    """Consumers after the region's nodes first, then producers, both in order."""
    members = set(region.nodes)
    after = {n for node in region.nodes for n in view.consumers(node)} - members
    before = {n for node in region.nodes for n in view.producers(node)} - members
    return sorted(before, key=lambda n: -view.order[n]) + sorted(after - before, key=view.order.__getitem__)


def _by_element(space: Space) -> bool:
    return crossed(space) is None and any(uneven(inst, space.lanes) is not None for inst in space.insts())


def _evaluations(space: Space) -> float:
    """The work if a value of a row cost no more than a lane: alone, such values are computed 16 at a time."""
    return work(space, per_row=1 / 16)


def _not_wasteful(before: Candidate, after: Candidate, node: ir.Node, alone: float) -> None:
    """Refuses a node that the region would evaluate many times over because it broadcasts the result.

    `alone`: the node's work in a kernel of its own.
    """
    if node.op_type not in _BLOCKS and _by_element(after.space) and not _by_element(before.space):
        raise Decline("operands would be read element by element")
    extra = _evaluations(after.space) - _evaluations(before.space)
    if extra > 1.5 * alone + _SLACK:
        raise Decline(f"it would be recomputed: {extra:.0f} vector instructions instead of {alone:.0f}")
