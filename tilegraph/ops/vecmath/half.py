"""Rounding a float32 to the nearest float16 or bfloat16 value, kept as float32: half to even, NaN stays NaN."""

from __future__ import annotations

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import copy_sign


def round_to_half(m: Math[V], x: V) -> V:
    """The float16 nearest to float32 x, as float32. From 65520 up in magnitude: infinity; denormal float16 included.

    The float adder does the rounding: beside 2^(e + 13) its last bit is 2^(e - 10), float16's last bit at exponent e.
    e stops at float16's smallest exponent, which gives the denormals.
    """
    x = m.share(x)
    a = m.share(m.abs(x))
    bits = m.bitcast(a, "int32")
    exponent = m.share(m.band(bits, m.const(0x7F800000, "int32")))
    least = m.const((127 - 14) << 23, "int32")  # float16's smallest normal exponent
    clamped = m.select(m.lt(exponent, least), least, exponent)
    adder = m.share(m.bitcast(m.add(clamped, m.const(13 << 23, "int32")), "float32"))
    rounded = m.sub(m.add(a, adder), adder)
    huge = m.le(m.const(65520.0, "float32"), a)
    result = m.select(huge, m.const(float("inf"), "float32"), rounded)
    return copy_sign(m, m.select(m.eq(x, x), result, a), x)


def round_to_bfloat16(m: Math[V], x: V) -> V:
    """The bfloat16 nearest to float32 x, as float32; overflow gives infinity."""
    x = m.share(x)
    bits = m.share(m.bitcast(x, "int32"))
    one = m.const(1, "int32")
    odd = m.band(m.shr(bits, m.const(16, "int32")), one)
    raised = m.add(m.add(bits, m.const(0x7FFF, "int32")), odd)
    rounded = m.bitcast(m.band(raised, m.const(-0x10000, "int32")), "float32")
    return m.select(m.eq(x, x), rounded, x)
