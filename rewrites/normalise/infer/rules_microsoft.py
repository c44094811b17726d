"""Shapes of the ops of domain com.microsoft that optimizers and exporters write most. Source: ONNX Runtime's list of
contributed operators (docs/ContribOperators.md)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tilegraph.rewrites.normalise.infer.info import Context, Info, Rule
from tilegraph.rewrites.normalise.infer.rules_math import layer_norm, matmul_shape, same_as_first
from tilegraph.spec.dims import Dim


def fused_matmul(c: Context) -> Sequence[Info]:
    a, b = c.input(0), c.input(1)
    batched = c.attr("transBatchA", 0) or c.attr("transBatchB", 0)
    if batched or a.shape is None or b.shape is None or len(a.shape) < 2 or len(b.shape) < 2:
        return [Info(a.dtype)]
    left = (*a.shape[:-2], a.shape[-1], a.shape[-2]) if c.attr("transA", 0) else a.shape
    right = (*b.shape[:-2], b.shape[-1], b.shape[-2]) if c.attr("transB", 0) else b.shape
    return [Info(a.dtype, matmul_shape(left, right))]


def matmul_nbits(c: Context) -> Sequence[Info]:
    """The weight is packed; its columns are the attribute N."""
    a, columns = c.input(0), c.attr("N")
    if a.shape is None or columns is None:
        return [Info(a.dtype)]
    return [Info(a.dtype, (*a.shape[:-1], Dim.of(int(columns))))]


def matmul_to_float(c: Context) -> Sequence[Info]:
    """MatMulIntegerToFloat and DynamicQuantizeMatMul: the scales are floats, and so is the result."""
    scale = c.input(2)
    return [Info(scale.dtype, matmul_shape(c.input(0).shape, c.input(1).shape))]


def skip_layer_norm(c: Context) -> Sequence[Info]:
    """Outputs: normalised, mean, inverse deviation, and the sum that was normalised."""
    first = c.input(0)
    same = Info(first.dtype, first.shape)
    statistics = None if first.shape is None else (*first.shape[:-1], Dim.of(1))
    kinds = [same, Info(ir.DataType.FLOAT, statistics), Info(ir.DataType.FLOAT, statistics), same]
    return kinds[: len(c.node.outputs)]


def attention(c: Context) -> Sequence[Info]:
    """Input [batch, length, width], weight [width, q + k + v]; the output is as wide as v."""
    data, weight = c.input(0), c.input(1)
    if data.shape is None or len(data.shape) != 3:
        return [Info(data.dtype)]
    sizes = c.attr("qkv_hidden_sizes")
    width = None
    if sizes is not None:
        width = Dim.of(int(sizes[2]))
    elif weight.shape is not None and len(weight.shape) == 2 and weight.shape[1] is not None:
        width = weight.shape[1].exact_div(3)
    return [Info(data.dtype, (data.shape[0], data.shape[1], width))]


def multi_head_attention(c: Context) -> Sequence[Info]:
    """Separate [batch, length, width] operands only; packed forms stay unknown."""
    q, v = c.input(0), c.input(2)
    if q.shape is None or v.shape is None or len(q.shape) != 3 or len(v.shape) != 3:
        return [Info(q.dtype)]
    return [Info(q.dtype, (q.shape[0], q.shape[1], v.shape[2]))]


def group_query_attention(c: Context) -> Sequence[Info]:
    """The output has the query's shape unless q, k and v are packed into one operand."""
    q = c.input(0)
    return [Info(q.dtype, q.shape if c.has(1) and c.has(2) else None)]


RULES: dict[tuple[str, str], Rule] = {
    ("com.microsoft", op): rule
    for op, rule in {
        **dict.fromkeys(("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "RotaryEmbedding", "BiasAdd"), same_as_first),
        **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), skip_layer_norm),
        **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), matmul_to_float),
        "SimplifiedLayerNormalization": layer_norm,
        "FusedMatMul": fused_matmul,
        "MatMulNBits": matmul_nbits,
        "Attention": attention,
        "MultiHeadAttention": multi_head_attention,
        "GroupQueryAttention": group_query_attention,
    }.items()
}
