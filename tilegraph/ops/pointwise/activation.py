"""Activation functions. Attribute defaults are those of ONNX, as the float32 that they are for float64 operands too;
special values those of ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilegraph.ops import vecmath
from tilegraph.ops.math import Math, V
from tilegraph.ops.pointwise.base import FLOATS, SIGNED, PointFn, PointOp, alike, unary
from tilegraph.ops.vecmath.basic import at_least, at_most, like

Attrs = Mapping[str, Any]


def relu(m: Math[V], x: V) -> V:
    """max(x, 0) that keeps NaN; -0 stays -0 or becomes +0 (equal)."""
    x = m.share(x)
    zero = like(m, x, 0)
    return m.select(m.lt(x, zero), zero, x)


def _leaky_relu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    return m.select(m.lt(x, like(m, x, 0.0)), m.mul(x, like(m, x, attrs.get("alpha", 0.009999999776482582))), x)


def _prelu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    return m.select(m.lt(x, like(m, x, 0.0)), m.mul(x, args[1]), x)


def _thresholded_relu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    return m.select(m.lt(like(m, x, attrs.get("alpha", 1.0)), x), x, like(m, x, 0.0))


def _elu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    below = m.mul(vecmath.expm1(m, x), like(m, x, attrs.get("alpha", 1.0)))
    return m.select(m.lt(x, like(m, x, 0.0)), below, x)


def _celu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """max(0, x) + min(0, alpha (e^(x/alpha) - 1))."""
    x = m.share(args[0])
    alpha = like(m, x, attrs.get("alpha", 1.0))
    below = m.mul(vecmath.expm1(m, m.div(x, alpha)), alpha)
    return m.add(at_least(m, x, 0.0), at_most(m, below, 0.0))


def _selu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    alpha = attrs.get("alpha", 1.6732631921768188)
    gamma = attrs.get("gamma", 1.0507010221481323)
    below = m.mul(vecmath.expm1(m, x), like(m, x, alpha))
    return m.mul(m.select(m.lt(like(m, x, 0.0), x), x, below), like(m, x, gamma))


def _hard_sigmoid(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = args[0]
    line = m.add(m.mul(x, like(m, x, attrs.get("alpha", 0.20000000298023224))), like(m, x, attrs.get("beta", 0.5)))
    return at_least(m, at_most(m, line, 1.0), 0.0)


def _hard_swish(m: Math[V], x: V) -> V:
    """x times HardSigmoid with alpha a float32, also for float64 values: in the function body it is an attribute."""
    x = m.share(x)
    line = m.add(m.mul(x, like(m, x, 0.1666666716337204)), like(m, x, 0.5))
    return m.mul(x, at_least(m, at_most(m, line, 1.0), 0.0))


def _softsign(m: Math[V], x: V) -> V:
    x = m.share(x)
    return m.div(x, m.add(like(m, x, 1.0), m.abs(x)))


def _shrink(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    bias, lambd = attrs.get("bias", 0.0), attrs.get("lambd", 0.5)
    above = m.select(m.lt(like(m, x, lambd), x), m.sub(x, like(m, x, bias)), like(m, x, 0))
    return m.select(m.lt(x, like(m, x, -lambd)), m.add(x, like(m, x, bias)), above)


def swish(m: Math[V], x: V, alpha: float) -> V:
    """x sigmoid(alpha x)."""
    x = m.share(x)
    return m.mul(x, vecmath.sigmoid(m, x if alpha == 1.0 else m.mul(x, like(m, x, alpha))))


def _swish(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return swish(m, args[0], float(attrs.get("alpha", 1.0)))


_TWO_BY_PI, _CUBIC = 0.6366197466850281, 0.044714998453855515  # as float32 has them


def gelu_erf(m: Math[V], x: V) -> V:
    """x/2 (1 + erf(x / sqrt 2))."""
    x = m.share(x)
    inner = vecmath.erf(m, m.mul(x, like(m, x, math.sqrt(0.5))))
    return m.mul(m.mul(x, like(m, x, 0.5)), m.add(inner, like(m, x, 1.0)))


def gelu_tanh(m: Math[V], x: V) -> V:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

    ONNX defines both constants in float32, in float64 too (the operator's function body, Gelu-20).
    """
    x = m.share(x)
    slope, cubic = math.sqrt(_TWO_BY_PI), _CUBIC
    inner = m.mul(x, m.fma(m.mul(x, x), like(m, x, slope * cubic), like(m, x, slope)))
    return m.mul(m.mul(x, like(m, x, 0.5)), m.add(vecmath.tanh(m, inner), like(m, x, 1.0)))


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gelu(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return (gelu_tanh if text(attrs.get("approximate", "none")) == "tanh" else gelu_erf)(m, args[0])


def _check_gelu(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """an approximation other than none and tanh"""
    how = text(attrs.get("approximate", "none"))
    return None if how in ("none", "tanh") else f"approximate is {how!r}, expected none or tanh"


def _float_op(name: str, fn: PointFn, cost: int, since: str, arity: tuple[int, int] = (1, 1)) -> PointOp:
    return PointOp(name, "", arity, fn, cost, since, alike(FLOATS))


# ONNX Runtime computes Shrink in float32 whatever the dtype: wider types would differ.
_SHRINKABLE = ("float32", "int8", "int16", "uint8", "uint16")

OPS = (
    unary("Relu", relu, 1, FLOATS + SIGNED, "6 (14: integers)"),
    _float_op("LeakyRelu", _leaky_relu, 3, "6"),
    _float_op("PRelu", _prelu, 3, "7", (2, 2)),
    _float_op("ThresholdedRelu", _thresholded_relu, 2, "10"),
    _float_op("Elu", _elu, 22, "6"),
    _float_op("Celu", _celu, 32, "12"),
    _float_op("Selu", _selu, 23, "6"),
    _float_op("HardSigmoid", _hard_sigmoid, 4, "6"),
    unary("HardSwish", _hard_swish, 5, FLOATS, "14"),
    unary("Softsign", _softsign, 10, FLOATS, "1"),
    PointOp("Shrink", "", (1, 1), _shrink, 6, "9", alike(_SHRINKABLE)),
    unary("Sigmoid", vecmath.sigmoid, 32, FLOATS, "6"),
    unary("Softplus", vecmath.softplus, 33, FLOATS, "1"),
    unary("Mish", vecmath.mish, 38, FLOATS, "18"),
    _float_op("Swish", _swish, 33, "24"),
    PointOp("Gelu", "", (1, 1), _gelu, 37, "20", alike(FLOATS), _check_gelu),
)
