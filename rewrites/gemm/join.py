"""Products of the same rows with results of their own, as queries, keys and values, become one composite.

One kernel goes through the panels of all matrices: rows are read once, threads wait for each other once, and there are
more tasks of equal size. It gains where there are few rows (docs/gemm.md); with many it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.gemm.find import Candidate, alone

_MOST = 4  # results that wait for their readers together: the keys and values of a whole decoder would fill the arena


def join(found: Sequence[Candidate], view: GraphView, verdicts: Verdicts[GemmSpace]) -> list[Candidate]:
    """`found`, of one graph, with those joined that can be; each says what keeps it apart from others of its rows.

    A product that reads more than the rows and constants stays apart: what it reads may come from another one, or lead
    to one by way of a third kernel, and the composites would depend on one another in a circle.
    """
    groups: dict[ir.Value, list[Candidate]] = {}
    for candidate in found:
        rows = candidate.products[0].inputs[0]
        assert rows is not None
        groups.setdefault(rows, []).append(candidate)
    return [one for group in groups.values() for one in (_joined(group, view, verdicts) if len(group) > 1 else group)]


def _joined(group: Sequence[Candidate], view: GraphView, verdicts: Verdicts[GemmSpace]) -> Iterator[Candidate]:
    """The candidates of one value's rows, in order."""
    waiting = list(group)
    while waiting:
        best, *rest = waiting
        waiting, reason, declined = [], _reason(best), ""
        for other in rest:
            if reason or len(best.outputs) == _MOST or _reason(other):
                waiting.append(other)
                continue
            try:
                best = _both(best, other, view, verdicts)
            except Decline as problem:
                declined = problem.reason
                waiting.append(other)
        apart = reason or (declined if len(best.outputs) == 1 else "")
        yield replace(best, apart=apart) if apart else best


def _reason(candidate: Candidate) -> str:
    """What keeps it from being joined to any other, or ""."""
    space = candidate.space
    if space.quantized is not None or space.matrix is not None:
        return "its matrix is not one of floats"
    if space.others:
        return "it reads two matrices already"
    if not alone(candidate):
        return "its matrix is read elsewhere, too"
    inside = set(candidate.nodes)
    for node in candidate.nodes:
        for value in node.inputs:
            made = None if value is None else value.producer()
            if made is not None and made not in inside and value is not candidate.products[0].inputs[0] \
                    and made.graph is node.graph:
                return f"it also reads {value.name}" if value is not None else ""
    return ""


def _both(one: Candidate, other: Candidate, view: GraphView, verdicts: Verdicts[GemmSpace]) -> Candidate:
    """`Decline` with the reason against it."""
    nodes = tuple(sorted((*one.nodes, *other.nodes), key=view.order.__getitem__))
    outputs = (*one.outputs, *other.outputs)
    lowered, space = verdicts.ask(nodes, outputs)
    return Candidate((*one.products, *other.products), nodes, outputs, lowered, space,
                     (*one.matrices, *other.matrices))
