"""Key and value caches: the Concat of past and new keys becomes part of the kernel that reads them.

Taken: a Concat along the keys whose result the attention reads, through views and repeated heads too; what it makes
(the exporter's `present`) stays a value of the graph, as a further result of the composite. So is a ScatterElements
that puts new rows where a run says, of an operator whose lengths the graph has asked for. Left outside: what the kernel
cannot read in place (keys that lie transposed, a depth that is no multiple of 4), or along another axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import onnx_ir as ir

from tilegraph.ops.lower import domain_of, is_parameter, kind_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.ops.space import Inst, Load, insts
from tilegraph.rewrites.attention.candidate import Candidate
from tilegraph.rewrites.attention.operators import owner_of

Examine = Callable[[Set[ir.Node], ir.Node, tuple[ir.Node, ...]], Candidate]
Chain = Callable[[ir.Value], Iterator[ir.Node]]
Free = Callable[[ir.Node], bool]


def shorten(best: Candidate, examine: Examine, chain: Chain, free: Free) -> Candidate:
    """`best` with the choice of values that goes with the choice of its scores: keys that no run reads."""
    last, node = best.output.producer(), _source(best.space.v, best.lowered)
    assert last is not None
    if node is None or node.op_type != "Where" or not free(node) or node.inputs[1] is None:
        return best
    views = list(chain(node.inputs[1]))
    for count in range(len(views), -1, -1):
        try:
            return examine({*best.nodes, node, *_makers(node.inputs[0], node, free), *views[:count]}, last, ())
        except Decline:
            continue
    return best


def join(best: Candidate, examine: Examine, chain: Chain, free: Free) -> Candidate:
    """`best` with the caches of its keys and values; `chain`: views behind a value, nearest first."""
    last = best.output.producer()
    assert last is not None
    found = [node for part in (best.space.k, best.space.v)
             if (node := _source(part, best.lowered)) is not None and free(node) and _is_cache(node)]
    wanted = tuple(dict.fromkeys(found))
    reason: Decline | None = None
    for caches in (wanted, *((one,) for one in wanted if len(wanted) > 1)):
        if not caches:
            continue
        places = [node for cache in caches if cache.op_type == "ScatterElements" for k in (0, 1)
                  for node in _makers(cache.inputs[k], cache, free)]
        try:
            best = examine({*best.nodes, *caches, *places}, last, caches)
        except Decline as why:
            reason = reason or why
            continue
        break
    if reason is not None and any(node.op_type == "ScatterElements" for node in {*wanted} - {*best.caches}):
        raise reason  # ONNX Runtime's operator writes in place; no kernel behind a copy is faster
    for node in best.caches:
        for value in node.inputs:
            best = _behind(best, value, last, examine, chain)
    return best


def _behind(best: Candidate, value: ir.Value | None, last: ir.Node, examine: Examine, chain: Chain) -> Candidate:
    """The views of what is appended, as many as the kernel can read through."""
    nodes = [] if value is None else list(chain(value))
    for count in range(len(nodes), 0, -1):
        try:
            return examine({*best.nodes, *nodes[:count]}, last, best.caches)
        except Decline:
            continue
    return best


def _source(part: Inst, lowered: Lowered) -> ir.Node | None:
    """The node whose result the keys or values are read from."""
    loads = [one for one in insts(part) if isinstance(one, Load)]
    if len(loads) != 1 or loads[0].slot < 0:
        return None
    node: ir.Node | None = dict(lowered.inputs)[loads[0].slot].producer()
    return node if node is not None and domain_of(node) == "" else None


def _is_cache(node: ir.Node) -> bool:
    """A concatenation, or an insertion at places that were asked for before: the kernel checks none."""
    owner = owner_of(node)
    return node.op_type == "Concat" or (node.op_type == "ScatterElements" and owner is not None and owner.asked)


def _makers(value: ir.Value | None, reader: ir.Node, free: Free) -> list[ir.Node]:
    """The nodes that compute `value` in the branch of the operator that `reader` was made for."""
    owner = owner_of(reader)
    if owner is None:
        return []
    found: list[ir.Node] = []
    stack = [value]
    while stack:
        one = stack.pop()
        node = None if one is None else one.producer()
        if node is None or node in found or owner_of(node) != owner or not free(node) or kind_of(node) is None \
                or constant_of(node.outputs[0]) is not None:
            continue
        found.append(node)
        stack.extend(v for k, v in enumerate(node.inputs) if not is_parameter(node, k))
    return found
