"""Key and value caches: the Concat of past and new keys becomes part of the kernel that reads them.

Taken: a Concat along the keys whose result the attention reads, through views and repeated heads too; what it makes
(the exporter's `present`) stays a value of the graph, as a further result of the composite. Left outside: a Concat that
the kernel cannot read in place (keys that lie transposed, a depth that is no multiple of 4), or along another axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

import onnx_ir as ir

from tilegraph.ops.lower import domain_of
from tilegraph.ops.prims import Decline, Lowered
from tilegraph.ops.space import Inst, Load, insts
from tilegraph.rewrites.attention.candidate import Candidate

Examine = Callable[[Set[ir.Node], ir.Node, tuple[ir.Node, ...]], Candidate]


def join(best: Candidate, examine: Examine, chain: Callable[[ir.Value], Iterator[ir.Node]],
         free: Callable[[ir.Node], bool]) -> Candidate:
    """`best` with the caches of its keys and values; `chain`: views behind a value, nearest first."""
    last = best.output.producer()
    assert last is not None
    found = [node for part in (best.space.k, best.space.v)
             if (node := _concat(part, best.lowered)) is not None and free(node)]
    wanted = tuple(dict.fromkeys(found))
    for caches in (wanted, *((one,) for one in wanted if len(wanted) > 1)):
        if not caches:
            continue
        try:
            best = examine({*best.nodes, *caches}, last, caches)
        except Decline:
            continue
        break
    for node in best.caches:
        for value in node.inputs:
            best = _behind(best, value, last, examine, chain)
    return best


def _behind(best: Candidate, value: ir.Value | None, last: ir.Node, examine: Examine,
            chain: Callable[[ir.Value], Iterator[ir.Node]]) -> Candidate:
    """The views of what is appended, as many as the kernel can read through."""
    nodes = [] if value is None else list(chain(value))
    for count in range(len(nodes), 0, -1):
        try:
            return examine({*best.nodes, *nodes[:count]}, last, best.caches)
        except Decline:
            continue
    return best


def _concat(part: Inst, lowered: Lowered) -> ir.Node | None:
    """The Concat whose result the keys or values are read from."""
    loads = [one for one in insts(part) if isinstance(one, Load)]
    if len(loads) != 1 or loads[0].slot < 0:
        return None
    node: ir.Node | None = dict(lowered.inputs)[loads[0].slot].producer()
    return node if node is not None and domain_of(node) == "" and node.op_type == "Concat" else None
