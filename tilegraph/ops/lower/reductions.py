"""Reductions, and the fused operators of ONNX that are made of them.

The definitions are those of the operators' function bodies in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilegraph.ops.lower.base import NodeContext, point, quotient, reduce_last, scalar
from tilegraph.ops.lower.views import reshape, take_range, transpose
from tilegraph.ops.prims import Extent, Prim
from tilegraph.spec.dims import Dim, Shape


def reduce_over(kind: str, source: Prim, axes: list[int], keepdims: bool) -> Prim:
    """The reduction with ONNX's shape. Axes that are not the last ones are brought there, which costs nothing.

    Extents of 1 among trailing axes are reduced along with the others.
    """
    if not axes:
        return source
    rank = len(source.shape)
    wanted = {a % rank for a in axes}
    out = tuple(Dim.of(1) if k in wanted else d for k, d in enumerate(source.shape) if keepdims or k not in wanted)
    first = min(wanted)
    if any(k not in wanted and source.shape[k] != 1 for k in range(first, rank)):
        kept = [k for k in range(rank) if k not in wanted]
        source = transpose(source, [*kept, *sorted(wanted)])
        first = len(kept)
    return reshape(reduce_last(kind, source, rank - first), out)


def count_of(source: Prim, axes: list[int], dtype: str) -> Prim:
    """How many elements each result is made of, as a scalar of `dtype`; 1 for none, whose mean is 0 in ONNX Runtime."""
    rank = len(source.shape)
    total = Dim.product(source.shape[k] for k in {a % rank for a in axes})
    value = total.as_int()
    if value is not None:
        return scalar(value, dtype)
    count = Extent((), "int64", dim=Dim.max(total, 1))
    return point("Cast", [count], dtype, attrs={"to": {"float32": 1, "float64": 11}[dtype]})


def mean_over(source: Prim, axes: list[int], keepdims: bool) -> Prim:
    """The sum divided by the count, once a result: a product with 1 / count would be off by one more rounding."""
    return quotient(reduce_over("sum", source, axes, keepdims), count_of(source, axes, source.dtype))


def extremum(kind: str, source: Prim, axes: list[int], keepdims: bool) -> Prim:
    """The "max" or "min" with NaN as ONNX Runtime has it: comparisons pass over NaN, but one in front stays.

    (What ONNX Runtime calls the front is the first element at a multiple of 16 bytes; kernels take the first one.)
    """
    if not axes or not source.dtype.startswith("float"):
        return reduce_over(kind, source, axes, keepdims)
    least = kind == "min"
    best = reduce_over("peak", point("Neg", [source], source.dtype) if least else source, axes, keepdims)
    if least:
        best = point("Neg", [best], source.dtype)
    front = source
    for axis in axes:
        front = take_range(front, axis % len(source.shape), 0, 1, Dim.of(1))
    front = reshape(front, best.shape)
    return point("Where", [point("IsNaN", [front], "bool"), front, best], source.dtype)


def axes_of(c: NodeContext, source: Prim) -> list[int]:
    axes = c.ints(1, "axes")
    if axes is None or (not axes and "axes" not in c.node.attributes):
        if int(c.attr("noop_with_empty_axes", 0)):
            return []
        return list(range(len(source.shape)))
    return axes


def _reduce(kind: str, before: str | None = None, after: str | None = None) -> Callable[[NodeContext], list[Prim]]:
    def lower(c: NodeContext) -> list[Prim]:
        source = c.arg(0)
        axes = axes_of(c, source)
        keep = int(c.attr("keepdims", 1)) == 1
        if source.dtype == "bool":
            raise c.decline("a reduction of bool")
        if not axes and kind == "mean":
            return [source]
        stated = source.dtype
        if kind not in ("max", "min") and not stated.startswith("float"):
            source = _as_double(c, source)
        if before == "Square":
            source = point("Mul", [source, source], source.dtype)
        elif before is not None:
            source = point(before, [source], source.dtype)
        if kind == "mean":
            result = mean_over(source, axes, keep)
        else:
            result = (extremum if kind in ("max", "min") else reduce_over)(kind, source, axes, keep)
        if after is not None:
            result = point(after, [result], result.dtype)
        return [result if result.dtype == stated else _saturated(result, stated)]

    return lower


def _as_double(c: NodeContext, source: Prim) -> Prim:
    """ONNX Runtime (1.32) reduces integers in float64 and puts the result at the end of the range that it leaves. int32
    sums are exact so; of int64 the order of the sums would decide above 2^53."""
    if source.dtype != "int32":
        raise c.decline(f"a sum or product of {source.dtype}, which ONNX Runtime rounds to 53 bits")
    return point("Cast", [source], "float64", attrs={"to": 11})


def _saturated(result: Prim, dtype: str) -> Prim:
    limits = np.iinfo(dtype)
    inside = point("Clip", [result, *(scalar(v, result.dtype) for v in (limits.min, limits.max))], result.dtype)
    return point("Cast", [inside], dtype, attrs={"to": 6})


def _logsumexp(c: NodeContext) -> list[Prim]:
    """log(sum(exp(x))) through the row maximum, guarded where the maximum is infinite."""
    x = c.arg(0)
    axes, keep = axes_of(c, x), int(c.attr("keepdims", 1)) == 1
    if not axes or not x.dtype.startswith("float"):
        raise c.decline("ReduceLogSumExp without axes or of integers")
    peak = reduce_over("peak", x, axes, True)  # may pass over NaN: the sum does not
    finite = point("Where", [point("IsInf", [peak], "bool"), scalar(0, x.dtype), peak], x.dtype)
    shifted = point("Exp", [point("Sub", [x, finite], x.dtype)], x.dtype)
    total = point("Log", [reduce_over("sum", shifted, axes, True)], x.dtype)
    result = point("Add", [total, finite], x.dtype)
    if keep:
        return [result]
    rank = len(x.shape)
    wanted = {a % rank for a in axes}
    return [reshape(result, tuple(d for k, d in enumerate(x.shape) if k not in wanted))]


def _softmax(log: bool) -> Callable[[NodeContext], list[Prim]]:
    def lower(c: NodeContext) -> list[Prim]:
        x = c.arg(0)
        rank = len(x.shape)
        if c.opset >= 13:
            axis = int(c.attr("axis", -1)) % rank
            axes = [axis]
        else:  # before 13 the operand is flattened to two dims at `axis`
            axes = list(range(int(c.attr("axis", 1)) % rank, rank))
        peak = reduce_over("peak", x, axes, True)  # may pass over NaN: the sum does not
        shifted = point("Sub", [x, peak], x.dtype)
        powers = point("Exp", [shifted], x.dtype)
        total = reduce_over("sum", powers, axes, True)
        if log:
            return [point("Sub", [shifted, point("Log", [total], x.dtype)], x.dtype)]
        # The sum is at least 1 (or NaN), so its reciprocal is a normal number: multiply by it.
        return [point("Mul", [powers, point("Reciprocal", [total], x.dtype)], x.dtype)]

    return lower


def centre(c: NodeContext, x: Prim, axes: list[int]) -> tuple[Prim, Prim, Prim]:
    """(x less its mean, the mean, the variance): the mean is taken twice, the second time of what is left of x.

    One sum in float32 may be off by some units in the last place: a row of one value would keep them, and dividing by
    the square root of epsilon would blow them up. Of such a row's rest the second mean is exact.
    """
    first = mean_over(x, axes, True)
    rest = point("Sub", [x, first], x.dtype)
    second = mean_over(rest, axes, True)
    square = mean_over(point("Mul", [rest, rest], x.dtype), axes, True)
    var = point("Sub", [square, point("Mul", [second, second], x.dtype)], x.dtype)
    var = point("Max", [scalar(0, x.dtype), var], x.dtype)
    return point("Sub", [rest, second], x.dtype), point("Add", [first, second], x.dtype), var


def normalise(c: NodeContext, x: Prim, axes: list[int], epsilon: float) -> tuple[Prim, Prim, Prim]:
    """((x - mean) / sqrt(var + epsilon), mean, 1 / sqrt(var + epsilon)) in three passes over the row."""
    centred, mean, var = centre(c, x, axes)
    std = point("Sqrt", [point("Add", [var, scalar(epsilon, x.dtype)], x.dtype)], x.dtype)
    inverse = point("Reciprocal", [std], x.dtype)
    return point("Mul", [centred, inverse], x.dtype), mean, inverse


def _affine(x: Prim, scale: Prim | None, bias: Prim | None) -> Prim:
    if scale is not None:
        x = point("Mul", [x, scale], x.dtype)
    return x if bias is None else point("Add", [x, bias], x.dtype)


def _one_dtype(c: NodeContext) -> Prim:
    """The first operand; ONNX Runtime's own definitions of these operators take a scale of another dtype."""
    if len({v.dtype for v in c.node.inputs[:2] if v is not None}) > 1:
        raise c.decline("its scale has another dtype")
    return c.arg(0)


def _layer_norm(c: NodeContext) -> list[Prim]:
    x = _one_dtype(c)
    axis = int(c.attr("axis", -1)) % len(x.shape)
    normal, mean, inverse = normalise(c, x, list(range(axis, len(x.shape))), float(c.attr("epsilon", 1e-5)))
    return [_affine(normal, c.arg(1), c.optional(2)), mean, inverse][:max(1, len(c.node.outputs))]


def _rms(c: NodeContext, x: Prim, axes: list[int], epsilon: float) -> tuple[Prim, Prim]:
    square = mean_over(point("Mul", [x, x], x.dtype), axes, True)
    std = point("Sqrt", [point("Add", [square, scalar(epsilon, x.dtype)], x.dtype)], x.dtype)
    inverse = point("Reciprocal", [std], x.dtype)
    return point("Mul", [x, inverse], x.dtype), inverse


def _rms_norm(c: NodeContext) -> list[Prim]:
    x = _one_dtype(c)
    axis = int(c.attr("axis", -1)) % len(x.shape)
    normal, inverse = _rms(c, x, list(range(axis, len(x.shape))), float(c.attr("epsilon", 1e-5)))
    outputs = [_affine(normal, c.arg(1), None), inverse]
    return outputs[:max(1, len(c.node.outputs))]


def _skip_norm(rms: bool) -> Callable[[NodeContext], list[Prim]]:
    """com.microsoft (Simplified)SkipLayerNormalization: x + skip + bias, normalised; output 3 is the sum."""

    def lower(c: NodeContext) -> list[Prim]:
        x = point("Add", [c.arg(0), c.arg(1)], c.arg(0).dtype)
        gamma = c.arg(2)
        beta, bias = (None, c.optional(3)) if rms else (c.optional(3), c.optional(4))
        if bias is not None:
            x = point("Add", [x, bias], x.dtype)
        axes, epsilon = [len(x.shape) - 1], float(c.attr("epsilon", 1e-5))
        if rms:
            normal, inverse = _rms(c, x, axes, epsilon)
            mean: Prim = inverse
        else:
            normal, mean, inverse = normalise(c, x, axes, epsilon)
        for k in (1, 2):
            if k < len(c.node.outputs) and c.node.outputs[k].name:
                raise c.decline("the mean or deviation output of a skip normalisation is used")
        return [_affine(normal, gamma, beta), mean, inverse, x][:max(1, len(c.node.outputs))]

    return lower


def channels(vector: Prim, rank: int) -> Prim:
    """A per-channel vector [C] shaped to broadcast over [N, C, ...]."""
    return reshape(vector, (vector.shape[0], *(Dim.of(1) for _ in range(rank - 2))))


def _instance_norm(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    rank = len(x.shape)
    normal, _, _ = normalise(c, x, list(range(2, rank)), float(c.attr("epsilon", 1e-5)))
    return [_affine(normal, channels(c.arg(1), rank), channels(c.arg(2), rank))]


def _group_norm(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    rank = len(x.shape)
    groups = int(c.attr("num_groups"))
    per_group = x.shape[1].exact_div(groups)
    if per_group is None:
        raise c.decline(f"{x.shape[1]} channels in {groups} groups")
    grouped: Shape = (x.shape[0], Dim.of(groups), per_group, *x.shape[2:])
    if c.opset >= 21 and int(c.attr("stash_type", 1)) != 1:
        raise c.decline(f"its rows are normalised in the type {c.attr('stash_type')} (stash_type), not in float32")
    if c.opset >= 21 and x.dtype == "float64":
        raise c.decline("its float64 rows are rounded to float32 (stash_type 1)")
    normal, _, _ = normalise(c, reshape(x, grouped), list(range(2, rank + 1)), float(c.attr("epsilon", 1e-5)))
    if c.opset < 21 and c.arg(1).shape == (Dim.of(groups),):  # opset 18: scale and bias per group
        scale, bias = (reshape(c.arg(i), (Dim.of(groups), *([Dim.of(1)] * (rank - 1)))) for i in (1, 2))
        return [reshape(_affine(normal, scale, bias), x.shape)]
    return [_affine(reshape(normal, x.shape), channels(c.arg(1), rank), channels(c.arg(2), rank))]


def _batch_norm(c: NodeContext) -> list[Prim]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, all per channel."""
    x = c.arg(0)
    rank = len(x.shape)
    if int(c.attr("training_mode", 0)):
        return _batch_norm_training(c, x, rank)
    if len([o for o in c.node.outputs if o.name]) > 1:
        raise c.decline("BatchNormalization in training mode")
    if rank < 2:
        raise c.decline("BatchNormalization of a vector")
    scale, bias, mean, var = (channels(c.arg(i), rank) for i in (1, 2, 3, 4))
    std = point("Sqrt", [point("Add", [var, scalar(float(c.attr("epsilon", 1e-5)), x.dtype)], x.dtype)], x.dtype)
    factor = point("Div", [scale, std], x.dtype)
    return [point("Add", [point("Mul", [point("Sub", [x, mean], x.dtype), factor], x.dtype), bias], x.dtype)]


def _batch_norm_training(c: NodeContext, x: Prim, rank: int) -> list[Prim]:
    """Mean and variance are those of the batch; outputs 1 and 2 are the running ones, moved towards them."""
    axes = [0, *range(2, rank)]
    centred, mean, var = centre(c, x, axes)
    std = point("Sqrt", [point("Add", [var, scalar(float(c.attr("epsilon", 1e-5)), x.dtype)], x.dtype)], x.dtype)
    factor = point("Mul", [channels(c.arg(1), rank), point("Reciprocal", [std], x.dtype)], x.dtype)
    result = point("Add", [point("Mul", [centred, factor], x.dtype), channels(c.arg(2), rank)], x.dtype)
    momentum = float(c.attr("momentum", 0.9))
    running: list[Prim] = []
    for kept, batch in ((c.arg(3), mean), (c.arg(4), var)):
        old = point("Mul", [kept, scalar(momentum, kept.dtype)], kept.dtype)
        new = point("Mul", [reshape(batch, kept.shape), scalar(1.0 - momentum, kept.dtype)], kept.dtype)
        running.append(point("Add", [old, new], kept.dtype))
    return [result, *running][:len(c.node.outputs)]


def _mean_variance(c: NodeContext) -> list[Prim]:
    """MeanVarianceNormalization: (x - mean) / (deviation + 1e-9)."""
    if c.opset < 9:
        raise c.decline("before opset 9 ONNX Runtime's has other attributes")
    x = c.arg(0)
    axes = [int(a) for a in c.attr("axes", [0, 2, 3])]
    centred, _, var = centre(c, x, axes)
    std = point("Add", [point("Sqrt", [var], x.dtype), scalar(1e-9, x.dtype)], x.dtype)
    return [point("Mul", [centred, point("Reciprocal", [std], x.dtype)], x.dtype)]


def _dynamic_quantize(c: NodeContext) -> list[Prim]:
    """DynamicQuantizeLinear to uint8. The range takes in 0; where all elements are 0 the scale is ONNX Runtime's 1."""
    x = c.arg(0)
    axes, none = list(range(len(x.shape))), scalar(0, x.dtype)
    high = point("Max", [reduce_over("max", x, axes, False), none], x.dtype)
    low = point("Min", [reduce_over("min", x, axes, False), none], x.dtype)
    span = point("Sub", [high, low], x.dtype)
    one = scalar(1, x.dtype)
    scale = point("Where", [point("Equal", [span, none], "bool"), one, quotient(span, scalar(255, x.dtype))], x.dtype)
    ratio = point("Neg", [quotient(low, scale)], x.dtype)
    place = point("Round", [point("Clip", [ratio, none, scalar(255, x.dtype)], x.dtype)], x.dtype)
    zero = point("Cast", [place], "uint8", attrs={"to": 2})
    return [point("QuantizeLinear", [x, scale, zero], "uint8"), scale, zero]


def _global_pool(kind: str) -> Callable[[NodeContext], list[Prim]]:
    def lower(c: NodeContext) -> list[Prim]:
        x = c.arg(0)
        axes = list(range(2, len(x.shape)))
        return [mean_over(x, axes, True) if kind == "mean" else extremum("max", x, axes, True)]

    return lower


def _lp_norm(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    axis = int(c.attr("axis", -1)) % len(x.shape)
    if int(c.attr("p", 2)) == 1:
        norm = reduce_over("sum", point("Abs", [x], x.dtype), [axis], True)
    else:
        norm = point("Sqrt", [reduce_over("sum", point("Mul", [x, x], x.dtype), [axis], True)], x.dtype)
    zero = point("Equal", [norm, scalar(0, x.dtype)], "bool")
    safe = point("Where", [zero, scalar(1, x.dtype), norm], x.dtype)
    return [point("Div", [x, safe], x.dtype)]


REDUCTIONS: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "ReduceSum"): _reduce("sum"),
    ("", "ReduceMean"): _reduce("mean"),
    ("", "ReduceMax"): _reduce("max"),
    ("", "ReduceMin"): _reduce("min"),
    ("", "ReduceProd"): _reduce("prod"),
    ("", "ReduceL1"): _reduce("sum", before="Abs"),
    ("", "ReduceL2"): _reduce("sum", before="Square", after="Sqrt"),
    ("", "ReduceSumSquare"): _reduce("sum", before="Square"),
    ("", "ReduceLogSum"): _reduce("sum", after="Log"),
    ("", "ReduceLogSumExp"): _logsumexp,
    ("", "Softmax"): _softmax(False),
    ("", "LogSoftmax"): _softmax(True),
    ("", "LayerNormalization"): _layer_norm,
    ("", "RMSNormalization"): _rms_norm,
    ("", "SimplifiedLayerNormalization"): _rms_norm,
    ("com.microsoft", "SkipLayerNormalization"): _skip_norm(False),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _skip_norm(True),
    ("", "InstanceNormalization"): _instance_norm,
    ("", "GroupNormalization"): _group_norm,
    ("", "BatchNormalization"): _batch_norm,
    ("", "MeanVarianceNormalization"): _mean_variance,
    ("", "DynamicQuantizeLinear"): _dynamic_quantize,
    ("", "GlobalAveragePool"): _global_pool("mean"),
    ("", "GlobalMaxPool"): _global_pool("max"),
    ("", "LpNormalization"): _lp_norm,
}

