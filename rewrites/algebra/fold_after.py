"""Scales and shifts that follow a linear node move into its weights.

    scale * (W x + B) + shift  =  (scale W) x + (scale B + shift)

W is linear in each output channel, and scale and shift are constants of that channel, so both sides are equal in exact
arithmetic. In floating point each folded weight is rounded once (from float64): a relative error of half an eps of
every product, as large as that of the products themselves, and one or more roundings of the output are saved.

Handles: Conv, ConvTranspose, Gemm and MatMul (constant matrix on the right), followed by any number of Add, Sub, Mul,
Div with scalars or one number for each output channel, and BatchNormalization outside training. MatMul has no bias:
its scale is folded, and what is left is one Add.

Refused: weights or bias that are not constant float32 or float64 (or that a caller may override); a value between that
something else reads or that is a graph output; constants that vary along another axis or enlarge the value; results
that are not finite; copies of shared or memory-mapped weights beyond the limit on folding; a lone shift after MatMul;
phases of sines and cosines, which would lose accuracy.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import PRODUCTS, Affine, chain_below, is_phase, per_channel
from tilegraph.rewrites.algebra.constants import FLOATS, Array, Constants, fits, floats
from tilegraph.rewrites.normalise.edit import constant_of, groups_of, is_op, remove, replace

_OPS = ("Conv", "ConvTranspose", *PRODUCTS)


class Refuse(Exception):
    """Why a fold is not done."""


class FoldAfter(Pass):
    name = "fold-affine-after"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                if not is_op(node, *_OPS) or node.outputs[0].dtype not in FLOATS:
                    continue
                chain, total = chain_below(node.outputs[0], graph)
                if chain and is_phase(chain[-1].outputs[0]):
                    context.diagnostics.refused(self.name, node.name or "", "its result is the phase of a sine",
                                                op=node.op_type, general=node.op_type in PRODUCTS)
                    continue
                while chain:  # as much of the chain as can be folded
                    try:
                        _FOLDS[node.op_type](node, chain, total, constants)
                    except Refuse as reason:
                        context.diagnostics.refused(self.name, node.name or "", str(reason), op=node.op_type,
                                                    general=node.op_type in PRODUCTS)
                        last = chain.pop()
                        total = chain_below(node.outputs[0], graph, until=last)[1]
                        continue
                    context.diagnostics.took(self.name, node.name or "", "holds the scales and shifts after it",
                                             op=node.op_type, nodes=[n.name for n in chain])
                    modified = True
                    break
        return PassResult(modified)


def _weights(node: ir.Node) -> Array:
    array = floats(node.inputs[1])
    if array is None:
        raise Refuse("it has no constant weights of float32 or float64 to fold into")
    if array.size == 0:
        raise Refuse("its weights are empty")
    return array


def _bias(node: ir.Node, index: int = 2) -> Array | None:
    """The bias, None if there is none."""
    if len(node.inputs) <= index or node.inputs[index] is None:
        return None
    array = floats(node.inputs[index])
    if array is None:
        raise Refuse("its bias is not constant float32 or float64")
    return array


def _channels(total: Affine, rank: int, axis: int, count: int) -> tuple[Array, Array]:
    scale, shift = (per_channel(a, rank, axis, count) for a in (total.scale, total.shift))
    if scale is None or shift is None:
        raise Refuse("the constants after it are not one number for each output channel")
    return scale, shift


def _checked(node: ir.Node, constants: Constants, weights: Array | None, bias: Array | None) -> ir.DataType:
    """The type to round to; refuses what cannot be stored."""
    dtype = node.outputs[0].dtype
    old = node.inputs[1]
    assert dtype is not None
    assert old is not None
    for array in (weights, bias):
        if array is not None and not fits(array, dtype):
            raise Refuse("a folded weight would not be finite")
    if weights is not None:
        reason = constants.refusal(node, old, int(weights.size * dtype.itemsize))
        if reason:
            raise Refuse(reason)
    return dtype


def _finish(node: ir.Node, chain: list[ir.Node], constants: Constants) -> None:
    """Takes `chain` out; `node` gives its result."""
    replace(chain[-1].outputs[0], node.outputs[0], constants.model.graph)
    for gone in reversed(chain):
        remove(gone)


def _conv(node: ir.Node, chain: list[ir.Node], total: Affine, constants: Constants) -> None:
    weights, bias = _weights(node), _bias(node)
    groups = groups_of(node)
    rank = weights.ndim
    if node.op_type == "Conv":
        count = weights.shape[0]
        scale, shift = _channels(total, rank, 1, count)
        scaled = weights * scale.reshape((-1,) + (1,) * (rank - 1))
    else:  # [input channels, output channels of a group, ...]
        count = weights.shape[1] * groups
        scale, shift = _channels(total, rank, 1, count)
        by_group = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
        scaled = (by_group * scale.reshape((groups, 1, -1) + (1,) * (rank - 2))).reshape(weights.shape)
    new_bias = scale * (0.0 if bias is None else bias) + shift
    new_weights = None if (scale == 1).all() else scaled
    dtype = _checked(node, constants, new_weights, new_bias)
    if new_weights is not None:
        constants.replace(node, 1, new_weights, dtype)
    if bias is not None or new_bias.any():
        constants.replace(node, 2, new_bias, dtype)
    _finish(node, chain, constants)


def _gemm(node: ir.Node, chain: list[ir.Node], total: Affine, constants: Constants) -> None:
    """alpha A B + beta C: the scale goes to B, the shift to C, and beta becomes 1."""
    weights, bias = _weights(node), _bias(node)
    across = 0 if "transB" in node.attributes and node.attributes["transB"].as_int() else 1
    count = weights.shape[across]
    scale, shift = _channels(total, 2, 1, count)
    if bias is not None and bias.size != 1 and (bias.shape[-1] != count or bias.size != count):
        raise Refuse("its C is not one number for each column")
    beta = node.attributes["beta"].as_float() if "beta" in node.attributes else 1.0
    new_bias = scale * (0.0 if bias is None else beta * bias.reshape(-1)) + shift
    new_weights = None if (scale == 1).all() else weights * (scale if across == 1 else scale[:, None])
    dtype = _checked(node, constants, new_weights, new_bias)
    if new_weights is not None:
        constants.replace(node, 1, new_weights, dtype)
    if bias is not None or new_bias.any():
        constants.replace(node, 2, new_bias, dtype)
        node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)
    _finish(node, chain, constants)


def _matmul(node: ir.Node, chain: list[ir.Node], total: Affine, constants: Constants) -> None:
    weights = _weights(node)
    left, result = node.inputs[0], node.outputs[0]
    if weights.ndim != 2:
        raise Refuse("its constant is not a matrix")
    if left is None or constant_of(left) is not None or result.shape is None:
        raise Refuse("the rank of its result is unknown")
    count = weights.shape[1]
    scale, shift = _channels(total, len(result.shape), len(result.shape) - 1, count)
    left_over = int(bool(shift.any()))
    if (scale == 1).all() or len(chain) <= left_over:
        raise Refuse("its bias stays an Add, which kernels of products take in (MatMul itself has none)")
    dtype = _checked(node, constants, weights * scale, shift)
    last = chain[-1]
    if left_over:
        if not is_op(last, "Add", "Sub", "Mul", "Div"):
            raise Refuse("what follows it is not arithmetic")
        keep = total.shift.reshape(()) if total.shift.size == 1 else shift
        added = constants.make(f"{last.name}_shift", keep, dtype)
        constants.replace(node, 1, weights * scale, dtype)
        rest = ir.node("Add", [result, added], name=constants.names.node(f"{last.name}_shift"))
        rest.outputs[0].name = constants.names.value(f"{last.outputs[0].name}_shifted")
        rest.outputs[0].type, rest.outputs[0].shape = last.outputs[0].type, last.outputs[0].shape
        last.append(rest)
        replace(last.outputs[0], rest.outputs[0], constants.model.graph)
        for gone in reversed(chain):
            remove(gone)
        return
    constants.replace(node, 1, weights * scale, dtype)
    _finish(node, chain, constants)


_FOLDS: dict[str, Callable[[ir.Node, list[ir.Node], Affine, Constants], None]] = {
    "Conv": _conv, "ConvTranspose": _conv, "Gemm": _gemm, "MatMul": _matmul,
}
