"""Nodes that give back one of their inputs, bit for bit.

Handles: Identity; Dropout outside training; Cast and CastLike to the type that is there; Reshape, Flatten, Squeeze,
Unsqueeze, Expand, Tile, Split and forward Slice that keep the shape; Transpose in order; Pad by nothing; Concat, Sum,
Max, Min and Mean of one input; x*1, x/1, x-0, integer x+0, and float x+(-0.0); x and true, x or false, x xor false.

Refused: float x+0 and x-(-0.0) (they turn -0.0 into 0.0), operands that broadcast x, shapes that are not proved equal,
and an Identity between a graph input, an initializer or another output and a graph output (the names must stay).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import (
    constant_of,
    is_inference_dropout,
    is_movable,
    is_op,
    is_used,
    remove,
    replace,
)
from tilegraph.rewrites.normalise.infer.info import same_shape

_READ_LIMIT = 1 << 16  # bytes of a constant operand that is looked at


class IdentityElimination(Pass):
    name = "identity"
    operators: frozenset[str] | None = None  # all

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        opset = model.graph.opset_imports.get("", 1)
        for graph in all_graphs(model):
            for node in list(graph):
                if self.operators is not None and node.op_type not in self.operators:
                    continue
                source = passed_through(node, opset)
                if source is None:
                    continue
                output = node.outputs[0]
                if is_op(node, "Identity") and output.is_graph_output() and not is_movable(source, graph):
                    continue
                if not is_used(output):
                    continue
                replace(output, source, model.graph)
                remove(node)
                modified = True
        return PassResult(modified)


class WrittenIdentities(IdentityElimination):
    """The nodes that are called so, before anything else: passes look for a Gather of a Shape or a product of an
    Expand, and not through the Identity that an exporter left between the two. What shapes alone tell has to wait:
    those that a model states may be wrong where a caller overrides an initializer."""

    name = "written-identities"
    operators = frozenset({"Identity"})


def passed_through(node: ir.Node, opset: int) -> ir.Value | None:
    """The input that `node`'s first output always equals, if there is one and no other output is used."""
    if node.domain != "" or not node.outputs or any(is_used(o) for o in node.outputs[1:]):
        return None
    if not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type in _BINARY:
        return _neutral(node)
    rule = _RULES.get(node.op_type)
    return node.inputs[0] if rule is not None and rule(node, opset) else None


def _keeps_shape(node: ir.Node, opset: int) -> bool:
    source = node.inputs[0]
    return source is not None and same_shape(source, node.outputs[0])


def _cast(node: ir.Node, opset: int) -> bool:
    source = node.inputs[0]
    assert source is not None
    if node.op_type == "CastLike":
        like = node.inputs[1]
        return like is not None and source.dtype is not None and source.dtype == like.dtype
    to = node.attributes["to"]
    return not to.is_ref() and source.dtype is not None and source.dtype.value == to.as_int()


def _slice(node: ir.Node, opset: int) -> bool:
    if not _keeps_shape(node, opset):
        return False
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is None:
        return True
    tensor = constant_of(steps)
    return tensor is not None and bool((tensor.numpy() == 1).all())


def _transpose(node: ir.Node, opset: int) -> bool:
    perm = node.attributes.get("perm")
    if perm is not None and not perm.is_ref():
        return list(perm.as_ints()) == sorted(perm.as_ints())
    source = node.inputs[0]
    return perm is None and source is not None and source.shape is not None and len(source.shape) < 2


def _pad(node: ir.Node, opset: int) -> bool:
    if "pads" in node.attributes:
        return not any(node.attributes["pads"].as_ints())
    tensor = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    return tensor is not None and not tensor.numpy().any()


def _alone(node: ir.Node, opset: int) -> bool:
    return len(node.inputs) == 1


_RULES: dict[str, Callable[[ir.Node, int], bool]] = {
    "Identity": lambda node, opset: True,
    "Dropout": is_inference_dropout,
    "Cast": _cast,
    "CastLike": _cast,
    "Slice": _slice,
    "Transpose": _transpose,
    "Pad": _pad,
    "Split": lambda node, opset: len(node.outputs) == 1 and _keeps_shape(node, opset),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile"), _keeps_shape),
    **dict.fromkeys(("Concat", "Sum", "Max", "Min", "Mean"), _alone),
}

# op -> (the neutral element, whether it may stand on the left as well)
_BINARY: dict[str, tuple[float, bool]] = {
    "Mul": (1, True), "Div": (1, False), "Sub": (0, False), "Add": (0, True),
    "And": (1, True), "Or": (0, True), "Xor": (0, True),
}


def _neutral(node: ir.Node) -> ir.Value | None:
    element, commutes = _BINARY[node.op_type]
    for index in (1, 0) if commutes else (1,):
        operand, other = node.inputs[index], node.inputs[1 - index]
        tensor = constant_of(operand)
        if tensor is None or other is None or tensor.nbytes > _READ_LIMIT or not same_shape(other, node.outputs[0]):
            continue
        if other.dtype is None or other.dtype != tensor.dtype or tensor.dtype == ir.DataType.STRING:
            continue
        array = tensor.numpy()
        if not bool((array == element).all()):
            continue
        if element == 0 and node.op_type in ("Add", "Sub") and tensor.dtype.is_floating_point():
            negative = np.signbit(array.astype(np.float64))
            if not (negative.all() if node.op_type == "Add" else not negative.any()):
                continue
        return other
    return None
