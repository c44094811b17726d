"""Extents that an operator requires to be equal get one name.

LSTM, GRU and RNN refuse a state of another batch than their input's, MatMul operands whose inner extents differ, and
Concat operands that differ beside its axis (ONNX Runtime lets empty ones differ, ONNX does not): in every run that
succeeds they are equal. Exporters that leave all extents
open do not say so (PyTorch gives each past key and value of a decoder a length and a batch of its own); then sums of
what comes from both have unknown extents, and nothing that follows can be a kernel. Extents of one name are checked on
every run, so an input that breaks the rule ends in an error as it did, in one that names both values.

Handles: symbols of the model's inputs, required by operators of the main graph, or in both branches of an If there;
also where expressions are equal only if two symbols are (past_k + n and past_v + n). Refused: what only one branch or a
loop's body requires, which may not run; extents that broadcast, of which one may be 1; other equations.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.control.sink import BRANCHES
from tilegraph.rewrites.normalise import Shapes
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.rewrites.normalise.infer.info import shape_of, to_ir_shape
from tilegraph.spec.dims import Dim

_STATES = (5, 6)  # inputs of a recurrent operator, [directions, batch, hidden]
_ROUNDS = 8  # what is equal may show that more is

Pair = tuple[str, str]


class EqualExtents(Pass):
    name = "equal-extents"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for _ in range(_ROUNDS):
            if not self._round(model, context):
                break
            modified = True
        return PassResult(modified)

    def _round(self, model: ir.Model, context: PassContext) -> bool:
        order = _symbols(model.graph)
        names: dict[str, str] = {}
        for (one, other), op in sorted(_required(model.graph).items()):
            if one in order and other in order:
                first, second = sorted((_root(one, names), _root(other, names)), key=order.index)
                if first != second:
                    names[second] = first
                    context.diagnostics.took(self.name, second, f"is called {first}: {op} requires that they are equal",
                                             op=op)
        if not names:
            return False
        found = {symbol: Dim.symbol(_root(symbol, names)) for symbol in names}
        for value in model.graph.inputs:
            shape = shape_of(value.shape)
            if shape is not None and any(d is not None and not d.symbols.isdisjoint(names) for d in shape):
                value.shape = to_ir_shape(tuple(None if d is None else d.substitute(found) for d in shape))
        Shapes().run(model, PassContext())
        return True


def _symbols(graph: ir.Graph) -> list[str]:
    """Those that are extents of the graph's inputs, in order."""
    return list(dict.fromkeys(d.value for v in graph.inputs if v.shape is not None for d in v.shape
                              if isinstance(d, ir.SymbolicDim) and d.value))


def _root(name: str, names: dict[str, str]) -> str:
    while name in names:
        name = names[name]
    return name


def _required(graph: ir.Graph) -> dict[Pair, str]:
    """Pairs of symbols that are equal whenever `graph` runs without an error, each with the operator that says so."""
    found: dict[Pair, str] = {}
    for node in graph:
        if is_op(node, "If"):
            one, other = (_required(node.attributes[key].as_graph()) for key in BRANCHES)
            found |= {pair: op for pair, op in one.items() if pair in other}
            continue
        for left, right in _equations(node):
            pair = _symbols_of(left, right)
            if pair is not None:
                found.setdefault(pair, node.op_type)
    return found


def _equations(node: ir.Node) -> Iterator[tuple[MaybeDim, MaybeDim]]:
    """Extents that `node` requires to be equal."""
    if is_op(node, "LSTM", "GRU", "RNN"):
        batch = _extent(node, 0, 3, 1)
        yield from ((batch, _extent(node, index, 3, 1)) for index in _STATES)
    elif is_op(node, "MatMul"):
        left, right = (None if v is None else shape_of(v.shape) for v in node.inputs)
        if left and right:
            yield left[-1], right[max(len(right) - 2, 0)]
    elif is_op(node, "Concat"):
        shapes = [shape for v in node.inputs if v is not None and (shape := shape_of(v.shape)) is not None]
        axis = node.attributes["axis"]
        for shape in shapes[1:]:
            if not axis.is_ref() and len(shape) == len(shapes[0]):
                along = axis.as_int() % len(shape)
                yield from (pair for k, pair in enumerate(zip(shapes[0], shape, strict=True)) if k != along)


def _symbols_of(left: MaybeDim, right: MaybeDim) -> Pair | None:
    """The two symbols that are equal if `left` and `right` are: these differ by a multiple of their difference."""
    terms = () if left is None or right is None else (left - right).terms
    if len(terms) != 2 or terms[0][1] != -terms[1][1]:
        return None
    atoms = [mono[0] for mono, _ in terms if len(mono) == 1 and isinstance(mono[0], str)]
    one, other = sorted(a for a in atoms if isinstance(a, str)) if len(atoms) == 2 else ("", "")
    return (one, other) if one else None


def _extent(node: ir.Node, index: int, rank: int, axis: int) -> MaybeDim:
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = None if value is None else shape_of(value.shape)
    return None if shape is None or len(shape) != rank else shape[axis]
