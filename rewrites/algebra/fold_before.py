"""Scales and shifts that lead to a linear node move into its weights.

    W (scale x + shift) + B  =  (W scale) x + (W shift + B)

Scale and shift are constants of each input channel. W shift is the same at every place of the output only where every
tap of the kernel reads a real element, so a shift is folded only without zero padding. With padding

    W pad(scale x + shift)  =  (W scale) pad(x + shift / scale),   since scale * 0 = 0

leaves one Add where there were two nodes or more. Both are equal in exact arithmetic; in floating point each folded
weight is rounded once, as in `fold_after`, and W shift is summed in float64 and rounded once.

Handles: Conv (groups, strides, dilations), ConvTranspose and Gemm, MatMul by a constant matrix (scalars only: one
number for each channel is the tail of a normalisation, which is one kernel and one ONNX Runtime operator as it is),
after any number of Add, Sub, Mul, Div with constants, and BatchNormalization before Conv.

Refused: values that something else reads too; the last factor of a GELU; weights or bias that are not constant float32
or float64; shifts before ConvTranspose and MatMul; a scale of 0 that a shift would be divided by; results that are not
finite; copies of weights beyond the limit on folding.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import PRODUCTS, Affine, chain_above, per_channel
from tilegraph.rewrites.algebra.constants import FLOATS, Array, Constants, fits, floats
from tilegraph.rewrites.normalise.edit import groups_of, is_op, remove

_OPS = ("Conv", "ConvTranspose", *PRODUCTS)


class FoldBefore(Pass):
    name = "fold-affine-before"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                if not is_op(node, *_OPS) or node.inputs[0] is None or node.inputs[0].dtype not in FLOATS:
                    continue
                chain, _ = chain_above(node.inputs[0], node, norms=node.op_type == "Conv")
                while chain:  # as much of its end as can be folded
                    reason = _fold(node, chain, constants)
                    if reason is None:
                        context.diagnostics.took(self.name, node.name or "", "holds the scales and shifts before it",
                                                 op=node.op_type, nodes=[n.name for n in chain])
                        modified = True
                        break
                    context.diagnostics.refused(self.name, node.name or "", reason, op=node.op_type,
                                                general=node.op_type in PRODUCTS)
                    chain.pop(0)
        return PassResult(modified)


def _fold(node: ir.Node, chain: list[ir.Node], constants: Constants) -> str | None:
    """Folds `chain`, which ends at the input of `node`. Returns why not, or None when it is done."""
    old, source = node.inputs[1], node.inputs[0]
    weights = floats(old)
    dtype = node.outputs[0].dtype
    if old is None or weights is None or weights.size == 0 or dtype not in FLOATS or source is None:
        return "it has no constant weights of float32 or float64 to fold into"
    assert dtype is not None
    if _ends_gelu(chain[0]):
        return "it is the end of a GELU, which is one operator as a whole"
    total = chain_above(source, node, norms=node.op_type == "Conv", first=chain[0])[1]
    where = _channels(node, weights)
    if where is None:
        return "its constant is not a matrix on the right"
    matrix = node.op_type in ("Gemm", "MatMul")
    scale, shift = (per_channel(a, *where) for a in (total.scale, total.shift))
    if scale is None or shift is None or (matrix and max(total.scale.size, total.shift.size) > 1):
        return "the constants before it are not " + ("scalars" if matrix else "one number for each input channel")
    left_over = None
    if shift.any() and (node.op_type != "Conv" or _pads(node)):
        if len(chain) < 2 or not scale.all() or not is_op(chain[-1], "Add", "Sub", "Mul", "Div"):
            return "a shift cannot pass " + ("zero padding" if node.op_type == "Conv" else node.op_type)
        left_over = total.shift / total.scale
        if not fits(left_over, dtype):
            return "a shift divided by its scale is not finite"
    scaled = _scaled(node, weights, scale)
    bias = None
    if left_over is None and shift.any():
        old_bias = np.zeros(()) if len(node.inputs) < 3 or node.inputs[2] is None else floats(node.inputs[2])
        if old_bias is None:
            return "its bias is not constant float32 or float64"
        bias = old_bias + _pushed(node, weights, shift)
    if not fits(scaled, dtype) or (bias is not None and not fits(bias, dtype)):
        return "a folded weight would not be finite"
    changes = not (scale == 1).all()
    reason = constants.refusal(node, old, int(scaled.size * dtype.itemsize)) if changes else None
    if reason:
        return reason
    if not changes and left_over is not None:
        return "a shift alone stays before zero padding"
    if changes:
        constants.replace(node, 1, scaled, dtype)
    if bias is not None:
        constants.replace(node, 2, bias, dtype)
    feed = total.source if left_over is None else _shifted(node, chain[-1], total, left_over, constants)
    node.replace_input_with(0, feed)
    for gone in reversed(chain):
        remove(gone)
    return None


def _ends_gelu(node: ir.Node) -> bool:
    """Whether `node` scales x (1 + erf(...)) or x (1 + tanh(...)): ONNX Runtime finds GELU by its last factor too."""
    for product in node.inputs:
        gated = None if product is None else product.producer()
        if gated is None or not is_op(gated, "Mul"):
            continue
        for value in gated.inputs:
            add = None if value is None else value.producer()
            if add is not None and is_op(add, "Add") and any(
                    v is not None and is_op(v.producer(), "Erf", "Tanh") for v in add.inputs):
                return True
    return False


def _channels(node: ir.Node, weights: Array) -> tuple[int, int, int] | None:
    """(rank of the input, its axis of channels, their number); None if the node is not W x with one W."""
    source = node.inputs[0]
    assert source is not None
    if node.op_type == "Conv":
        return weights.ndim, 1, groups_of(node) * weights.shape[1]
    if node.op_type == "ConvTranspose":
        return weights.ndim, 1, weights.shape[0]
    if weights.ndim != 2 or source.shape is None:
        return None
    if node.op_type == "Gemm":
        if "transA" in node.attributes and node.attributes["transA"].as_int():
            return None
        return 2, 1, weights.shape[1 if _transposed(node) else 0]
    return len(source.shape), len(source.shape) - 1, weights.shape[0]


def _transposed(node: ir.Node) -> bool:
    return "transB" in node.attributes and bool(node.attributes["transB"].as_int())


def _pads(node: ir.Node) -> bool:
    """Whether a Conv may read zeros beside its input."""
    auto = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
    if auto == "VALID":
        return False
    return auto != "NOTSET" or ("pads" in node.attributes and any(node.attributes["pads"].as_ints()))


def _scaled(node: ir.Node, weights: Array, scale: Array) -> Array:
    if node.op_type == "Conv":  # [output channels, input channels of a group, ...]
        groups, rest = groups_of(node), (1,) * (weights.ndim - 2)
        by_group = weights.reshape(groups, -1, *weights.shape[1:]) * scale.reshape(groups, 1, -1, *rest)
        return np.asarray(by_group.reshape(weights.shape))
    if node.op_type == "Gemm" and _transposed(node):
        return weights * scale
    return weights * scale.reshape((-1,) + (1,) * (weights.ndim - 1))


def _pushed(node: ir.Node, weights: Array, shift: Array) -> Array:
    """W shift of a Conv, one number for each output channel."""
    groups = groups_of(node)
    by_group = weights.reshape(groups, -1, weights.shape[1], int(np.prod(weights.shape[2:])))
    return np.asarray(np.einsum("gmck,gc->gm", by_group, shift.reshape(groups, -1)).reshape(-1))


def _shifted(node: ir.Node, last: ir.Node, total: Affine, shift: Array, constants: Constants) -> ir.Value:
    dtype = node.outputs[0].dtype
    assert dtype is not None
    constant = constants.make(f"{last.name}_shift", shift, dtype)
    add = ir.node("Add", [total.source, constant], name=constants.names.node(f"{last.name}_shift"))
    result = add.outputs[0]
    result.name = constants.names.value(f"{last.outputs[0].name}_shifted")
    result.type, result.shape = last.outputs[0].type, last.outputs[0].shape
    last.append(add)
    return result
