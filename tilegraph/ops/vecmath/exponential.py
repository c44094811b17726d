"""exp and what is built on it, for float32 without a libm call; float64 asks libm.

x = n ln2 + r with |r| <= ln2/2; e^r is a polynomial, 2^n is made from exponent bits. n comes out of the low bits of
x/ln2 + 1.5 * 2^23 (adding that constant rounds to an integer, half to even), which also gives the biased exponent
for free. Errors are stated for every float32; both a fused and a twice-rounded `fma` meet them.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import at_least, at_most, copy_sign, horner, like
from tilegraph.ops.vecmath.coefficients import ERF_LIMIT, ERF_RATIO, EXP_TAIL, LOG1P_RATIO

ROUNDER = 1.5 * 2.0**23
INV_LN2 = 1.4426950408889634
# ln2 in two parts: the first has 9 significant bits, so n * LN2_HIGH is exact for every n that occurs here.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH  # negative


class Reduced(NamedTuple, Generic[V]):
    """x = n ln2 + r. `biased` holds n + bias in its low bits (int32)."""

    r: V
    biased: V


def _reduce(m: Math[V], x: V, bias: int) -> Reduced[V]:
    rounder = m.const(ROUNDER + bias, "float32")
    shifted = m.share(m.fma(x, m.const(INV_LN2, "float32"), rounder))
    n = m.share(m.sub(shifted, rounder))
    r = m.fma(n, m.const(-LN2_HIGH, "float32"), x)
    r = m.share(m.fma(n, m.const(-LN2_LOW, "float32"), r))
    return Reduced(r, m.bitcast(shifted, "int32"))


def _expm1_near_zero(m: Math[V], r: V) -> V:
    """e^r - 1 for |r| <= ln2/2, relative error below one unit in the last place."""
    return m.fma(m.mul(r, r), horner(m, EXP_TAIL, r), r)


def _exp_near_zero(m: Math[V], r: V) -> V:
    """e^r for |r| <= ln2/2."""
    return horner(m, (1.0, 1.0, *EXP_TAIL), r)


def _power_of_two(m: Math[V], biased: V) -> V:
    """2^n from n + 127 in the low nine bits; -126 <= n <= 127."""
    return m.bitcast(m.shl(biased, m.const(23, "int32")), "float32")


def _exp_in_range(m: Math[V], x: V) -> V:
    """exp for -104 <= x <= 89 or NaN; denormal results are rounded once more, nothing is flushed."""
    r, biased = _reduce(m, x, bias=254)
    biased = m.share(biased)
    half = m.share(m.shr(biased, m.const(1, "int32")))  # 127 + floor(n / 2) in the low bits
    first = _power_of_two(m, half)
    second = _power_of_two(m, m.sub(biased, half))  # 127 + ceil(n / 2)
    return m.mul(m.mul(_exp_near_zero(m, r), first), second)


def exp(m: Math[V], x: V) -> V:
    """e^x. float32: at most 1.25 ulp where the result is normal, one denormal step below that; exp(-inf) = 0,
    overflow to inf from 88.72284, NaN for NaN. About 19 vector instructions."""
    if m.dtype(x) != "float32":
        return m.libm("exp", x)
    return _exp_in_range(m, m.share(at_most(m, at_least(m, x, -104.0), 89.0)))


def exp_minus_abs(m: Math[V], x: V) -> V:
    """e^-|x|, in [0, 1]."""
    if m.dtype(x) != "float32":
        return m.libm("exp", m.neg(m.abs(x)))
    return _exp_in_range(m, m.share(at_least(m, m.neg(m.abs(x)), -104.0)))


def expm1(m: Math[V], x: V) -> V:
    """e^x - 1 without cancellation near 0. float32: at most 1.75 ulp; expm1(-inf) = -1, expm1(-0) = +0."""
    if m.dtype(x) != "float32":
        return m.libm("expm1", x)
    x = m.share(at_most(m, at_least(m, x, -30.0), 89.0))
    r, biased = _reduce(m, x, bias=126)
    # 2^(n-1), doubled at the end: n = 128 is reached before the result overflows.
    half_scale = m.share(_power_of_two(m, biased))
    half = m.share(m.fma(half_scale, _expm1_near_zero(m, r), m.sub(half_scale, m.const(0.5, "float32"))))
    return m.add(half, half)


def _expm1_in_range(m: Math[V], x: V) -> V:
    """e^x - 1 for -80 <= x <= 80 or NaN."""
    r, biased = _reduce(m, x, bias=127)
    scale = m.share(_power_of_two(m, biased))
    return m.fma(scale, _expm1_near_zero(m, r), m.sub(scale, m.const(1.0, "float32")))


def tanh(m: Math[V], x: V) -> V:
    """float32: at most 2.7 ulp, odd, never above 1 in magnitude; tanh(-0) = -0. About 23 instructions, one division."""
    if m.dtype(x) != "float32":
        return m.libm("tanh", x)
    x = m.share(x)
    a = m.share(at_most(m, m.abs(x), 9.5))  # tanh(9.1) rounds to 1
    e = m.share(_expm1_in_range(m, m.share(m.add(a, a))))
    return copy_sign(m, m.div(e, m.add(e, m.const(2.0, "float32"))), x)


def sigmoid(m: Math[V], x: V) -> V:
    """1 / (1 + e^-x). float32: at most 2.7 ulp; results below 2^-127 (x < -88.376) are 0, as is sigmoid(-inf).

    About 20 instructions, one division. e^-x is at least 2^-126 and reaches infinity where 2^128 is made, so that one
    multiplication scales it.
    """
    if m.dtype(x) != "float32":
        x = m.share(x)
        e = m.share(exp_minus_abs(m, x))
        one = like(m, x, 1.0)
        return m.div(m.select(m.lt(x, like(m, x, 0.0)), e, one), m.add(e, one))
    r, biased = _reduce(m, m.share(at_most(m, at_least(m, m.neg(x), -87.0), 89.0)), bias=127)
    e = m.mul(_exp_near_zero(m, r), _power_of_two(m, biased))
    return m.div(m.const(1.0, "float32"), m.add(e, m.const(1.0, "float32")))


def softplus(m: Math[V], x: V) -> V:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|). float32: at most 2.7 ulp over the whole range; softplus(-inf) = 0."""
    x = m.share(x)
    positive = at_least(m, x, 0.0)
    e = m.share(exp_minus_abs(m, x))
    if m.dtype(x) != "float32":
        return m.add(positive, m.libm("log1p", e))
    return m.fma(e, horner(m, LOG1P_RATIO, e), positive)


def mish(m: Math[V], x: V) -> V:
    """x tanh(softplus(x)) from one exponential: with w = e^-|x|,
    x (1 + 2w) / (1 + 2w + 2w^2) for x >= 0 and x w (w + 2) / (w (w + 2) + 2) below. mish(-inf) = NaN as in the formula.
    """
    x = m.share(x)
    zero, one, two = (like(m, x, c) for c in (0.0, 1.0, 2.0))
    w = m.share(exp_minus_abs(m, x))
    below = m.lt(x, zero)
    numerator = m.share(m.select(below, m.mul(w, m.add(w, two)), m.fma(w, two, one)))
    rest = m.select(below, two, m.mul(w, m.add(w, w)))
    return m.mul(x, m.div(numerator, m.add(numerator, rest)))


def erf(m: Math[V], x: V) -> V:
    """float32: at most 4.2 ulp, odd, never above 1 in magnitude; erf(-0) = -0. About 24 instructions, no division.

    x P(x^2) with a polynomial in x^2 scaled to [-1, 1], on |x| <= 3.92, where erf rounds to 1.
    """
    if m.dtype(x) != "float32":
        return m.libm("erf", x)
    x = m.share(at_least(m, at_most(m, x, ERF_LIMIT), -ERF_LIMIT))
    u = m.fma(m.mul(x, x), m.const(2.0 / ERF_LIMIT**2, "float32"), m.const(-1.0, "float32"))
    return at_least(m, at_most(m, m.mul(x, horner(m, ERF_RATIO, m.share(u))), 1.0), -1.0)
