"""Inverse trigonometric functions, hyperbolic functions and their inverses for float32; float64 asks libm."""

from __future__ import annotations

import math

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import copy_sign, horner
from tilegraph.ops.vecmath.coefficients import ASIN_TAIL, ATAN_TAIL
from tilegraph.ops.vecmath.logarithm import log1p
from tilegraph.ops.vecmath.power import exp_64

_HALF_PI = math.pi / 2
_HALF_PI_REST = _HALF_PI - 1.57079637050628662109375  # what rounding pi/2 to float32 loses


def atan(m: Math[V], x: V) -> V:
    """float32: at most 1.5 ulp; atan(-0) = -0, atan(+-inf) = +-pi/2. About 25 instructions, one division."""
    if m.dtype(x) != "float32":
        return m.libm("atan", x)
    x = m.share(x)
    one = m.const(1.0, "float32")
    a = m.share(m.abs(x))
    large = m.lt(one, a)
    # One division for both sides: t = a or -1/a, and atan a = pi/2 + atan(-1/a).
    t = m.share(m.div(m.select(large, m.const(-1.0, "float32"), a), m.select(large, a, one)))
    z = m.share(m.mul(t, t))
    rest = m.select(large, m.const(_HALF_PI_REST, "float32"), m.const(0.0, "float32"))
    start = m.select(large, m.const(_HALF_PI, "float32"), m.const(0.0, "float32"))
    small = m.add(m.fma(m.mul(t, z), horner(m, ATAN_TAIL, z), rest), t)
    return copy_sign(m, m.add(start, small), x)


def _asin_of_half(m: Math[V], t: V) -> V:
    """asin t for |t| <= 1/2."""
    z = m.share(m.mul(t, t))
    return m.fma(m.mul(t, z), horner(m, ASIN_TAIL, z), t)


def _asin_argument(m: Math[V], a: V, large: V) -> V:
    """a, or above 1/2 sqrt((1 - a) / 2), with asin a = pi/2 - 2 asin of that; NaN for a > 1."""
    half = m.const(0.5, "float32")
    return m.share(m.select(large, m.sqrt(m.fma(a, m.const(-0.5, "float32"), half)), a))


def asin(m: Math[V], x: V) -> V:
    """float32: at most 2.6 ulp; asin(-0) = -0, NaN outside [-1, 1]. About 20 instructions, one square root."""
    if m.dtype(x) != "float32":
        return m.libm("asin", x)
    x = m.share(x)
    a = m.share(m.abs(x))
    large = m.lt(m.const(0.5, "float32"), a)
    r = m.share(_asin_of_half(m, _asin_argument(m, a, large)))
    reflected = m.sub(m.const(_HALF_PI, "float32"), m.sub(m.add(r, r), m.const(_HALF_PI_REST, "float32")))
    return copy_sign(m, m.select(large, reflected, r), x)


def acos(m: Math[V], x: V) -> V:
    """float32: at most 1.4 ulp; NaN outside [-1, 1]. About 22 instructions, one square root."""
    if m.dtype(x) != "float32":
        return m.libm("acos", x)
    x = m.share(x)
    a = m.share(m.abs(x))
    large = m.lt(m.const(0.5, "float32"), a)
    negative = m.lt(x, m.const(0.0, "float32"))
    r = m.share(_asin_of_half(m, _asin_argument(m, a, large)))
    twice = m.share(m.add(r, r))
    pi, pi_rest = m.const(math.pi, "float32"), m.const(2 * _HALF_PI_REST, "float32")
    far = m.select(negative, m.sub(pi, m.sub(twice, pi_rest)), twice)
    signed = m.sub(m.select(negative, m.neg(r), r), m.const(_HALF_PI_REST, "float32"))
    return m.select(large, far, m.sub(m.const(_HALF_PI, "float32"), signed))


def _log_of_sum(m: Math[V], a: V, exact: V) -> V:
    """log(1 + exact), or log(2 a) where a is so large that `exact` may have overflowed and 1 does not matter."""
    large = m.lt(m.const(2.0**30, "float32"), a)
    shift = m.select(large, m.const(math.log(2.0), "float32"), m.const(0.0, "float32"))
    return m.add(log1p(m, m.select(large, a, exact)), shift)


def asinh(m: Math[V], x: V) -> V:
    """float32: at most 2.2 ulp; asinh(-0) = -0. About 60 instructions.

    log(a + sqrt(a^2 + 1)) = log1p(a + a^2 / (1 + sqrt(a^2 + 1))) does not cancel near 0.
    """
    if m.dtype(x) != "float32":
        return m.libm("asinh", x)
    x = m.share(x)
    one = m.const(1.0, "float32")
    a = m.share(m.abs(x))
    square = m.share(m.mul(a, a))
    exact = m.add(a, m.div(square, m.add(one, m.sqrt(m.add(square, one)))))
    return copy_sign(m, _log_of_sum(m, a, exact), x)


def acosh(m: Math[V], x: V) -> V:
    """float32: at most 2.5 ulp; NaN below 1. About 55 instructions. With t = x - 1: log1p(t + sqrt(2t + t^2))."""
    if m.dtype(x) != "float32":
        return m.libm("acosh", x)
    x = m.share(x)
    one = m.const(1.0, "float32")
    t = m.share(m.sub(x, one))
    exact = m.add(t, m.sqrt(m.mul(t, m.add(t, m.const(2.0, "float32")))))
    return m.select(m.lt(x, one), m.const(float("nan"), "float32"), _log_of_sum(m, x, exact))


def atanh(m: Math[V], x: V) -> V:
    """float32: at most 2.5 ulp; atanh(-0) = -0, infinite at +-1, NaN beyond. Half of log1p(2a / (1 - a))."""
    if m.dtype(x) != "float32":
        return m.libm("atanh", x)
    x = m.share(x)
    a = m.share(m.abs(x))
    ratio = m.div(m.add(a, a), m.sub(m.const(1.0, "float32"), a))
    return copy_sign(m, m.mul(log1p(m, ratio), m.const(0.5, "float32")), x)


def sinh(m: Math[V], x: V) -> V:
    """float32: at most 0.7 ulp, through float64; sinh(-0) = -0. About 80 instructions."""
    if m.dtype(x) != "float32":
        return m.libm("sinh", x)
    x = m.share(x)
    a = m.share(m.abs(x))
    e = m.share(exp_64(m, m.cast(a, "float64")))
    half = m.const(0.5, "float64")
    far = m.cast(m.mul(m.sub(e, m.div(m.const(1.0, "float64"), e)), half), "float32")
    # Near 0 the difference cancels: the Taylor series to x^9, whose next term is below 2^-36 at 1/2.
    z = m.share(m.mul(a, a))
    near = m.fma(m.mul(a, z), horner(m, [1 / math.factorial(k) for k in (3, 5, 7, 9)], z), a)
    return copy_sign(m, m.select(m.lt(a, m.const(0.5, "float32")), near, far), x)


def cosh(m: Math[V], x: V) -> V:
    """float32: at most 0.502 ulp, through float64. About 60 instructions."""
    if m.dtype(x) != "float32":
        return m.libm("cosh", x)
    e = m.share(exp_64(m, m.cast(m.abs(x), "float64")))
    half = m.const(0.5, "float64")
    return m.cast(m.mul(m.add(e, m.div(m.const(1.0, "float64"), e)), half), "float32")
