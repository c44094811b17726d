"""Products of the same rows with results of their own, as queries, keys and values, become one composite.

One kernel goes through the panels of all matrices: rows are read once, threads wait for each other once, and there are
more tasks of equal size. It gains where there are few rows (docs/gemm.md); with many it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.gemm.find import Candidate, alone

_MOST = 4  # results that wait for their readers together: the keys and values of a whole decoder would fill the arena
_FAR = 200  # nodes behind a value that are looked at; shapes and masks take fewer
_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)  # may read anything


def join(found: Sequence[Candidate], view: GraphView, verdicts: Verdicts[GemmSpace]) -> list[Candidate]:
    """`found`, of one graph, with those joined that can be; each says what keeps it apart from others of its rows.

    What a product reads beside its rows must not come from any of `found`: by way of that, composites could depend on
    one another in a circle. Rows themselves lead to none, as no product makes what it is made of.
    """
    free = _Free(frozenset(product for candidate in found for product in candidate.products))
    groups: dict[ir.Value, list[Candidate]] = {}
    for candidate in found:
        rows = candidate.products[0].inputs[0]
        assert rows is not None
        groups.setdefault(rows, []).append(candidate)
    return [one for group in groups.values()
            for one in (_joined(group, view, verdicts, free) if len(group) > 1 else group)]


class _Free:
    """Whether a value does not come from any of the products."""

    def __init__(self, products: Set[ir.Node]) -> None:
        self.products = products
        self.known: set[ir.Node] = set()

    def __call__(self, value: ir.Value, graph: ir.Graph | ir.Function | None) -> bool:
        """`graph`: that of the products; what others around it make was there before."""
        seen: set[ir.Node] = set()
        stack = [value.producer()]
        while stack:
            node = stack.pop()
            if node is None or node in self.known or node in seen or node.graph is not graph:
                continue
            if node in self.products or len(seen) == _FAR or any(a.type in _BODIES for a in node.attributes.values()):
                return False
            seen.add(node)
            stack += [v.producer() for v in node.inputs if v is not None]
        self.known |= seen
        return True


def _joined(group: Sequence[Candidate], view: GraphView, verdicts: Verdicts[GemmSpace], free: _Free) \
        -> Iterator[Candidate]:
    """The candidates of one value's rows, in order."""
    waiting = list(group)
    while waiting:
        best, *rest = waiting
        waiting, reason, declined = [], _reason(best, free), ""
        for other in rest:
            if reason or len(best.outputs) == _MOST or _reason(other, free):
                waiting.append(other)
                continue
            try:
                best = _both(best, other, view, verdicts)
            except Decline as problem:
                declined = problem.reason
                waiting.append(other)
        apart = reason or (declined if len(best.outputs) == 1 else "")
        yield replace(best, apart=apart) if apart else best


def _reason(candidate: Candidate, free: _Free) -> str:
    """What keeps it from being joined to any other, or ""."""
    space = candidate.space
    if space.quantized is not None or space.matrix is not None:
        return "its matrix is not one of floats"
    if space.others:
        return "it reads two matrices already"
    if not alone(candidate):
        return "its matrix is read elsewhere, too"
    inside, rows = set(candidate.nodes), candidate.products[0].inputs[0]
    for node in candidate.nodes:
        for value in node.inputs:
            if value is None or value is rows or value.producer() in inside or free(value, node.graph):
                continue
            return f"it also reads {value.name}, which comes from another product or from afar"
    return ""


def _both(one: Candidate, other: Candidate, view: GraphView, verdicts: Verdicts[GemmSpace]) -> Candidate:
    """`Decline` with the reason against it."""
    nodes = tuple(sorted((*one.nodes, *other.nodes), key=view.order.__getitem__))
    outputs = (*one.outputs, *other.outputs)
    lowered, space = verdicts.ask(nodes, outputs)
    return Candidate((*one.products, *other.products), nodes, outputs, lowered, space,
                     (*one.matrices, *other.matrices))
