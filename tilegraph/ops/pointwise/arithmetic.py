"""Arithmetic, rounding, extrema. Integers wrap, as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tilegraph.ops.math import Math, V
from tilegraph.ops.pointwise.base import (
    FLOATS,
    INTEGERS,
    LIBM,
    NUMERIC,
    SIGNED,
    VARIADIC,
    PointOp,
    alike,
    binary,
    constant_operand,
    each,
    unary,
)
from tilegraph.ops.vecmath import power
from tilegraph.ops.vecmath.basic import like

Attrs = Mapping[str, Any]


def _is_float(m: Math[V], x: V) -> bool:
    return m.dtype(x) in FLOATS


def _is_signed(m: Math[V], x: V) -> bool:
    return m.dtype(x) in SIGNED


def _absolute(m: Math[V], x: V) -> V:
    return x if m.dtype(x).startswith("uint") else m.abs(x)


def _sign(m: Math[V], x: V) -> V:
    """-1, 0, 1; NaN for NaN, +0 for -0."""
    x = m.share(x)
    zero, one = like(m, x, 0), like(m, x, 1)
    positive = m.select(m.lt(zero, x), one, zero)
    if m.dtype(x).startswith("uint"):
        return positive
    result = m.select(m.lt(x, zero), like(m, x, -1), positive)
    return m.select(m.eq(x, x), result, x) if _is_float(m, x) else result


def _reciprocal(m: Math[V], x: V) -> V:
    return m.div(like(m, x, 1.0), x)


def _safe_divide(m: Math[V], a: V, b: V) -> V:
    """Truncated quotient for b != 0; INT_MIN / -1 wraps to INT_MIN instead of trapping."""
    if not _is_signed(m, a):
        return m.idiv(a, b)
    a, b = m.share(a), m.share(b)
    minus_one = m.eq(b, like(m, b, -1))
    return m.select(minus_one, m.neg(a), m.idiv(a, m.select(minus_one, like(m, b, 1), b)))


def _safe_remainder(m: Math[V], a: V, b: V) -> V:
    """Remainder with the sign of a for b != 0; a rem -1 is 0."""
    if not _is_signed(m, a):
        return m.irem(a, b)
    b = m.share(b)
    return m.irem(a, m.select(m.eq(b, like(m, b, -1)), like(m, b, 1), b))


def _zero_divisor(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """the integer constant 0 as divisor"""
    return "integer division by the constant 0" if dtypes[0] in INTEGERS and constant_operand(attrs, 1) == 0 else None


def _divisor(m: Math[V], b: V, attrs: Attrs, what: str) -> V:
    """An integer divisor that is not 0: a 0 ends the run with an error, as in ONNX Runtime."""
    if constant_operand(attrs, 1) is not None:
        return b
    b = m.share(b)
    fine = m.share(m.ne(b, like(m, b, 0)))
    m.require(fine, f"{what}: an integer divisor is 0")
    return m.select(fine, b, like(m, b, 1))


def _div(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    a, b = args
    return m.div(a, b) if _is_float(m, a) else _safe_divide(m, a, _divisor(m, b, attrs, "Div"))


def _mod(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    a, b = args
    if _is_float(m, a):
        return m.libm("fmod", a, b)
    b = m.share(_divisor(m, b, attrs, "Mod"))
    remainder = m.share(_safe_remainder(m, a, b))
    if int(attrs.get("fmod", 0)) or not _is_signed(m, a):
        return remainder
    # The sign of the divisor: add it where the remainder is not 0 and the signs differ.
    zero = like(m, b, 0)
    differ = m.lt(m.bxor(remainder, b), zero)
    return m.select(m.land(m.ne(remainder, zero), differ), m.add(remainder, b), remainder)


def _check_mod(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """floats without fmod=1; the integer constant 0 as divisor"""
    if dtypes[0] in FLOATS and not int(attrs.get("fmod", 0)):
        return "float operands need fmod=1 (ONNX Runtime rejects them too)"
    return _zero_divisor(dtypes, attrs, opset)


def _pow(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    base, exponent = args
    known = constant_operand(attrs, 1)
    if known is not None:
        easy = power.pow_constant(m, base, known)
        if easy is not None:
            return easy
    dtype = m.dtype(base)
    return power.pow_general(m, base, exponent if m.dtype(exponent) == dtype else m.cast(exponent, dtype))


def _check_pow(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """integer bases unless the exponent is the constant 2 or 3; exponents of a wider dtype unless constant"""
    base, exponent = dtypes
    known = constant_operand(attrs, 1)
    if base in INTEGERS and known not in (2, 3):
        return "an integer base needs the constant exponent 2 or 3"
    if base == "float32" and exponent == "float64" and known is None:
        return "a float64 exponent of a float32 base would lose precision"
    if exponent in ("int64", "uint64", "int32", "uint32") and known is None:
        return f"an exponent of dtype {exponent} must be a constant: it may not fit the base's dtype"
    return None


def minimum(m: Math[V], a: V, b: V) -> V:
    """NaN if either is NaN; b where they are equal, so that zeros have the sign that ONNX Runtime gives them."""
    if not _is_float(m, a):
        return m.minimum(a, b)
    a, b = m.share(a), m.share(b)
    return m.select(m.eq(a, a), m.select(m.lt(a, b), a, b), a)


def maximum(m: Math[V], a: V, b: V) -> V:
    """NaN if either is NaN; b where they are equal."""
    if not _is_float(m, a):
        return m.maximum(a, b)
    a, b = m.share(a), m.share(b)
    return m.select(m.eq(a, a), m.select(m.lt(b, a), a, b), a)


def _max(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return reduce(lambda a, b: maximum(m, a, b), args)


def _min(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return reduce(lambda a, b: minimum(m, a, b), args)


def _sum(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    return reduce(m.add, args)


def _mean(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    total = _sum(m, args, attrs, out_dtype)
    return m.div(total, like(m, total, float(len(args))))


def _limit(m: Math[V], x: V, sign: int) -> V:
    """The lowest (sign -1) or greatest finite value of float x's dtype."""
    dtype = m.dtype(x)
    info = np.finfo(dtype)
    return like(m, x, float(info.min if sign < 0 else info.max))


def _clip(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """min(max(x, low), high): high wins where low > high; NaN stays NaN. Bounds are inputs (opset 11) or attributes.

    As in ONNX Runtime an absent bound of a float is its largest finite value: infinities become finite.
    """
    x = args[0]
    low = args[1] if len(args) > 1 else None
    high = args[2] if len(args) > 2 else None
    if low is None and "min" in attrs:
        low = like(m, x, attrs["min"])
    if high is None and "max" in attrs:
        high = like(m, x, attrs["max"])
    if _is_float(m, x):
        low = _limit(m, x, -1) if low is None else low
        high = _limit(m, x, 1) if high is None else high
    if low is not None:
        x, low = m.share(x), m.share(low)
        x = m.select(m.lt(x, low), low, x)
    if high is not None:
        x, high = m.share(x), m.share(high)
        x = m.select(m.lt(high, x), high, x)
    return x


OPS = (
    binary("Add", lambda m, a, b: m.add(a, b), 1, NUMERIC, "7 (14: 8 and 16 bits)"),
    binary("Sub", lambda m, a, b: m.sub(a, b), 1, NUMERIC, "7 (14: 8 and 16 bits)"),
    binary("Mul", lambda m, a, b: m.mul(a, b), 1, NUMERIC, "7 (14: 8 and 16 bits)"),
    PointOp("Div", "", (2, 2), _div, 8, "7 (14: 8 and 16 bits)", alike(NUMERIC), _zero_divisor),
    PointOp("Mod", "", (2, 2), _mod, LIBM, "10", alike(NUMERIC), _check_mod),
    PointOp("Pow", "", (2, 2), _pow, 150, "7 (12: exponent of another dtype)", each(NUMERIC, NUMERIC), _check_pow),
    PointOp("Max", "", (1, VARIADIC), _max, 4, "6 (8: broadcast, 12: integers)", alike(NUMERIC)),
    PointOp("Min", "", (1, VARIADIC), _min, 4, "6 (8: broadcast, 12: integers)", alike(NUMERIC)),
    PointOp("Sum", "", (1, VARIADIC), _sum, 2, "6 (8: broadcast)", alike(FLOATS)),
    PointOp("Mean", "", (1, VARIADIC), _mean, 8, "6 (8: broadcast)", alike(FLOATS)),
    PointOp("Clip", "", (1, 3), _clip, 2, "6 (11: bounds are inputs, 12: integers)", alike(NUMERIC)),
    unary("Abs", _absolute, 1, NUMERIC, "6"),
    unary("Neg", lambda m, x: m.neg(x), 1, FLOATS + SIGNED, "6"),
    unary("Sign", _sign, 4, NUMERIC, "9"),
    unary("Reciprocal", _reciprocal, 8, FLOATS, "6"),
    unary("Sqrt", lambda m, x: m.sqrt(x), 8, FLOATS, "6"),
    unary("Floor", lambda m, x: m.floor(x), 1, FLOATS, "6"),
    unary("Ceil", lambda m, x: m.ceil(x), 1, FLOATS, "6"),
    unary("Round", lambda m, x: m.round_even(x), 1, FLOATS, "11"),
)
