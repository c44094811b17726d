"""Small pieces that the vector functions share: polynomials, signs, clamps. All keep NaN."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.ops.math import Math, V

FLOAT_BITS = {"float32": "int32", "float64": "int64"}
_SIGN = {"int32": -(2**31), "int64": -(2**63)}


def like(m: Math[V], x: V, value: float | int | bool) -> V:
    """The constant `value` in x's dtype."""
    return m.const(value, m.dtype(x))


def horner(m: Math[V], coefficients: Sequence[float], x: V) -> V:
    """c0 + c1 x + c2 x^2 + ...; coefficients lowest order first, at least two."""
    p = like(m, x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        p = m.fma(p, x, like(m, x, c))
    return p


def at_least(m: Math[V], x: V, low: float) -> V:
    """max(x, low) that keeps NaN; one instruction where `minimum`/`maximum` take several."""
    x, bound = m.share(x), like(m, x, low)
    return m.select(m.lt(x, bound), bound, x)


def at_most(m: Math[V], x: V, high: float) -> V:
    """min(x, high) that keeps NaN."""
    x, bound = m.share(x), like(m, x, high)
    return m.select(m.lt(bound, x), bound, x)


def sign_bit(m: Math[V], x: V) -> V:
    """The sign bit of float x, alone in the integer type of the same width."""
    bits = FLOAT_BITS[m.dtype(x)]
    return m.band(m.bitcast(x, bits), m.const(_SIGN[bits], bits))


def copy_sign(m: Math[V], magnitude: V, sign: V) -> V:
    """`magnitude`, whose sign bit must be clear (or NaN), with the sign bit of `sign`."""
    dtype = m.dtype(magnitude)
    return m.bitcast(m.bor(m.bitcast(magnitude, FLOAT_BITS[dtype]), sign_bit(m, sign)), dtype)


def is_nan(m: Math[V], x: V) -> V:
    x = m.share(x)
    return m.ne(x, x)
