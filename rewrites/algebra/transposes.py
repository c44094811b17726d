"""Transposes that undo each other go, with element-wise nodes between them or without.

    T_q(f(T_p(x), T_p(z), c))  =  f(x, z, T_q(c)),   q the inverse of p, f element by element, c constant

because f does the same to every element wherever it stands. Exact, bit by bit. Every rewrite takes out at least one
Transpose and adds none.

Handles: any connected set of element-wise nodes whose inputs are Transposes with one permutation, or constants, and
whose readers are Transposes with the inverse one; broadcasting between operands of the same rank; constants of a
smaller rank, which are brought to the rank and transposed. NHWC exports of convolution networks are full of these.

Refused: a node of the set that something else reads or that is a graph output; operands of different ranks;
permutations that do not cancel (two Transposes in a row stay two: ONNX Runtime takes the second into a MatMul).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.constants import Constants
from tilegraph.rewrites.normalise.edit import constant_of, is_op, is_used, remove, replace

ELEMENTWISE = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual",
    "Log", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Selu",
    "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Where", "Xor"))
_LIMIT = 1 << 16  # bytes of a constant that is transposed


class Transposes(Pass):
    name = "transposes"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                if node.graph is not graph or not is_op(node, "Transpose"):
                    continue
                between = _between(node)
                if between is None:
                    continue
                _cancel(between, constants)
                context.diagnostics.took(self.name, node.name or "",
                                         f"cancels with another across {len(between.nodes)} nodes", op="Transpose")
                modified = True
        return PassResult(modified)


@dataclass
class _Between:
    """Element-wise `nodes` between Transposes: `entries` with a permutation and `exits` with its inverse."""

    perm: tuple[int, ...]  # of the exits
    entries: dict[ir.Value, ir.Node] = field(default_factory=dict)
    exits: dict[ir.Node, None] = field(default_factory=dict)
    nodes: dict[ir.Node, None] = field(default_factory=dict)


def perm_of(node: ir.Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose; None if it is not known."""
    attribute = node.attributes.get("perm")
    if attribute is not None:
        return None if attribute.is_ref() else tuple(attribute.as_ints())
    source = node.inputs[0]
    return None if source is None or source.shape is None else tuple(reversed(range(len(source.shape))))


def _between(last: ir.Node) -> _Between | None:
    perm = perm_of(last)
    start = last.inputs[0]
    if perm is None or start is None:
        return None
    inverse = tuple(int(i) for i in np.argsort(perm))
    found = _Between(perm)
    found.exits[last] = None
    pending = [start]
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or node.graph is not last.graph:
            return None
        if is_op(node, "Transpose") and perm_of(node) == inverse:
            found.entries[value] = node
            continue
        if node in found.nodes:
            continue
        if not is_op(node, *ELEMENTWISE) or not _fits(node, len(perm)):
            return None
        found.nodes[node] = None
        pending += [v for v in node.inputs if v is not None and constant_of(v) is None]
    for node in found.nodes:
        for output in node.outputs:
            if output.is_graph_output():
                return None
            for user, _ in output.uses():
                if user in found.nodes:
                    continue
                if not is_op(user, "Transpose") or perm_of(user) != perm or user.graph is not last.graph:
                    return None
                found.exits[user] = None
    return found if found.entries else None


def _fits(node: ir.Node, rank: int) -> bool:
    """Whether all that `node` computes with is of `rank`, or constants that can be brought to it."""
    if any(o.shape is None or len(o.shape) != rank for o in node.outputs):
        return False
    for value in node.inputs:
        if value is None:
            continue
        tensor = constant_of(value)
        if tensor is None:
            if value.shape is None or len(value.shape) != rank:
                return False
        elif len(tensor.shape) > rank or (tensor.size != 1 and tensor.nbytes > _LIMIT):
            return False
    return True


def _cancel(between: _Between, constants: Constants) -> None:
    perm, rank = between.perm, len(between.perm)
    for node in between.nodes:
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            if value in between.entries:
                node.replace_input_with(index, between.entries[value].inputs[0])
                continue
            tensor = constant_of(value)
            if tensor is not None and tensor.size != 1:
                array = tensor.numpy()
                moved = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(perm)
                node.replace_input_with(index, constants.make(f"{value.name}_transposed", moved, tensor.dtype))
        for output in node.outputs:
            assert output.shape is not None
            dims = list(output.shape)
            output.shape = ir.Shape([dims[i] for i in perm])
    for node in between.exits:
        source = node.inputs[0]
        assert source is not None
        given = between.entries[source].inputs[0] if source in between.entries else source
        assert given is not None
        replace(node.outputs[0], given, constants.model.graph)
        remove(node)
    for node in between.entries.values():
        if not is_used(node.outputs[0]):
            remove(node)
