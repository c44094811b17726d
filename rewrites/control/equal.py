"""Extents that an operator requires to be equal get one name.

LSTM, GRU and RNN refuse a state of another batch than their input's, so in every run that succeeds the two are equal.
Exporters that leave both open do not say so; then sums of what comes from both have unknown extents, and nothing that
follows can be a kernel. Extents of one name are checked on every run, so an input that breaks the rule ends in an error
as it did, in one that names both values.

Handles: symbols of the model's inputs, required by operators of the main graph, or in both branches of an If there.
Refused: what only one branch or a loop's body requires, which may not run; extents that are expressions or numbers.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.control.sink import BRANCHES
from tilegraph.rewrites.normalise import Shapes
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.info import shape_of

_STATES = (5, 6)  # inputs of a recurrent operator, [directions, batch, hidden]

Pair = tuple[str, str]


class EqualExtents(Pass):
    name = "equal-extents"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        order = _symbols(model.graph)
        names: dict[str, str] = {}
        for one, other in sorted(_required(model.graph)):
            if one in order and other in order:
                first, second = sorted((_root(one, names), _root(other, names)), key=order.index)
                if first != second:
                    names[second] = first
                    context.diagnostics.took(self.name, second, f"is called {first}: a recurrent operator requires "
                                             "that they are equal")
        if not names:
            return PassResult(False)
        for value in model.graph.inputs:
            if value.shape is not None:
                value.shape = ir.Shape([_root(d.value, names) if isinstance(d, ir.SymbolicDim) and d.value else d
                                        for d in value.shape])
        Shapes().run(model, PassContext())
        return PassResult(True)


def _symbols(graph: ir.Graph) -> list[str]:
    """Those that are extents of the graph's inputs, in order."""
    return list(dict.fromkeys(d.value for v in graph.inputs if v.shape is not None for d in v.shape
                              if isinstance(d, ir.SymbolicDim) and d.value))


def _root(name: str, names: dict[str, str]) -> str:
    while name in names:
        name = names[name]
    return name


def _required(graph: ir.Graph) -> set[Pair]:
    """Pairs of symbols that are equal whenever `graph` runs without an error."""
    found: set[Pair] = set()
    for node in graph:
        if is_op(node, "LSTM", "GRU", "RNN"):
            batch = _batch(node, 0)
            for index in _STATES:
                state = _batch(node, index)
                if batch is not None and state is not None and batch != state:
                    found.add((min(batch, state), max(batch, state)))
        elif is_op(node, "If"):
            one, other = (_required(node.attributes[key].as_graph()) for key in BRANCHES)
            found |= one & other
    return found


def _batch(node: ir.Node, index: int) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = None if value is None else shape_of(value.shape)
    return None if shape is None or len(shape) != 3 or shape[1] is None else shape[1].bare_symbol
