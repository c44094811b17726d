"""sin, cos and tan for every float32 without a libm call or a branch; float64 asks libm.

x times 2/pi modulo 4 comes from seven products with pieces of 2/pi that are exact in float64 (the idea of M. Payne
and R. Hanek, "Radian reduction for trigonometric functions", 1983, with the integer part of each product dropped as
soon as it is known), so that a huge x costs what a small one does: about 120 vector instructions.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import horner
from tilegraph.ops.vecmath.coefficients import COS_TAIL, SIN_TAIL, TWO_OVER_PI

_ROUNDER_64 = 1.5 * 2.0**52


class _Quadrant(NamedTuple, Generic[V]):
    """x = quadrant pi/2 + t: sin t and cos t (float32, |t| <= pi/4), and the quadrant's two low bits (int64)."""

    sin: V
    cos: V
    quadrant: V


def _reduce(m: Math[V], x: V) -> _Quadrant[V]:
    """NaN in both functions for NaN and infinite x."""
    wide = m.share(m.cast(x, "float64"))
    parts: list[V] = []
    for chunk in TWO_OVER_PI:
        # The product is exact: 24 and 29 bits. Multiples of 4 quadrants do not matter; the difference is exact too.
        product = m.share(m.mul(wide, m.const(chunk, "float64")))
        turns = m.round_even(m.mul(product, m.const(0.25, "float64")))
        parts.append(m.share(m.fma(turns, m.const(-4.0, "float64"), product)))
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = m.add(total, part)
    rounder = m.const(_ROUNDER_64, "float64")
    shifted = m.share(m.add(total, rounder))
    # Subtracting the integer first keeps the sum exact where x is close to a multiple of pi/2.
    rest = m.sub(parts[0], m.sub(shifted, rounder))
    for part in parts[1:]:
        rest = m.add(rest, part)
    t = m.share(m.cast(m.mul(rest, m.const(math.pi / 2, "float64")), "float32"))
    z = m.share(m.mul(t, t))
    sin = m.fma(m.mul(t, z), horner(m, SIN_TAIL, z), t)
    cos = horner(m, (1.0, -0.5, *COS_TAIL), z)
    return _Quadrant(m.share(sin), m.share(cos), m.share(m.bitcast(shifted, "int64")))


def _bit(m: Math[V], value: V, bit: int) -> V:
    return m.ne(m.share(m.band(value, m.const(bit, "int64"))), m.const(0, "int64"))


def _negate_if(m: Math[V], condition: V, x: V) -> V:
    x = m.share(x)
    return m.select(condition, m.neg(x), x)


def sin(m: Math[V], x: V) -> V:
    """float32: at most 1.6 ulp; sin(-0) = -0, NaN for infinities."""
    if m.dtype(x) != "float32":
        return m.libm("sin", x)
    x = m.share(x)
    q = _reduce(m, x)
    result = _negate_if(m, _bit(m, q.quadrant, 2), m.select(_bit(m, q.quadrant, 1), q.cos, q.sin))
    return m.select(m.eq(x, m.const(0.0, "float32")), x, result)


def cos(m: Math[V], x: V) -> V:
    """float32: at most 1.6 ulp; NaN for infinities."""
    if m.dtype(x) != "float32":
        return m.libm("cos", x)
    q = _reduce(m, x)
    negative = _bit(m, m.add(q.quadrant, m.const(1, "int64")), 2)
    return _negate_if(m, negative, m.select(_bit(m, q.quadrant, 1), q.sin, q.cos))


def tan(m: Math[V], x: V) -> V:
    """float32: at most 4 ulp; tan(-0) = -0, NaN for infinities."""
    if m.dtype(x) != "float32":
        return m.libm("tan", x)
    x = m.share(x)
    q = _reduce(m, x)
    odd = _bit(m, q.quadrant, 1)
    result = m.div(_negate_if(m, odd, m.select(odd, q.cos, q.sin)), m.select(odd, q.sin, q.cos))
    return m.select(m.eq(x, m.const(0.0, "float32")), x, result)
