"""log and log1p for float32 without a libm call; float64 asks libm.

x = 2^e m with 2/3 <= m < 4/3, so that log m never cancels against e ln2.
"""

from __future__ import annotations

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import horner, like
from tilegraph.ops.vecmath.coefficients import LOG_TAIL
from tilegraph.ops.vecmath.exponential import LN2_HIGH, LN2_LOW

_TWO_THIRDS = 0x3F2AAAAB  # the bits of float32 2/3
_SMALLEST_NORMAL = 2.0**-126


def _split(m: Math[V], x: V) -> tuple[V, V]:
    """(m, e): x = m 2^e, m in [2/3, 4/3) float32, e int32; x positive and normal."""
    bits = m.share(m.sub(m.bitcast(x, "int32"), m.const(_TWO_THIRDS, "int32")))
    e = m.shr(bits, m.const(23, "int32"))
    mantissa = m.add(m.band(bits, m.const(0x7FFFFF, "int32")), m.const(_TWO_THIRDS, "int32"))
    return m.bitcast(mantissa, "float32"), e


def split_positive(m: Math[V], x: V) -> tuple[V, V]:
    """(m, e): x = m 2^e, m in [2/3, 4/3) and e integral, both float32; x positive and finite, denormals included."""
    x = m.share(x)
    denormal = m.lt(x, m.const(_SMALLEST_NORMAL, "float32"))
    mantissa, exponent = _split(m, m.select(denormal, m.mul(x, m.const(2.0**23, "float32")), x))
    shift = m.select(denormal, m.const(-23.0, "float32"), m.const(0.0, "float32"))
    return mantissa, m.add(m.cast(exponent, "float32"), shift)


def _log_of_parts(m: Math[V], f: V, e: V) -> V:
    """log(1 + f) + e ln2; f in [-1/3, 1/3), e an integral float32. The sum starts with its smallest part."""
    tail = m.fma(f, horner(m, LOG_TAIL, f), m.const(-0.5, "float32"))
    small = m.fma(m.mul(f, f), tail, m.mul(e, m.const(LN2_LOW, "float32")))
    return m.fma(e, m.const(LN2_HIGH, "float32"), m.add(f, small))


def log(m: Math[V], x: V) -> V:
    """float32: at most 1.05 ulp, denormal x included; log(0) = -inf, log(x < 0) = NaN, log(inf) = inf."""
    if m.dtype(x) != "float32":
        return m.libm("log", x)
    x = m.share(x)
    mantissa, e = split_positive(m, x)
    f = m.share(m.sub(mantissa, m.const(1.0, "float32")))
    return _special(m, x, _log_of_parts(m, f, m.share(e)), edge=0.0)


def log1p(m: Math[V], x: V) -> V:
    """log(1 + x). float32: at most 1.85 ulp also near 0; log1p(-1) = -inf, below NaN, log1p(-0) = +0."""
    if m.dtype(x) != "float32":
        return m.libm("log1p", x)
    x = m.share(x)
    one = m.const(1.0, "float32")
    mantissa, exponent = _split(m, m.add(x, one))
    exponent = m.share(exponent)
    # 2^-e, so that m - 1 = x 2^-e + (2^-e - 1) keeps the bits of x that 1 + x rounds away.
    scale = m.sub(m.const(0x3F800000, "int32"), m.shl(exponent, m.const(23, "int32")))
    scale = m.share(m.bitcast(scale, "float32"))
    exact = m.fma(x, scale, m.sub(scale, one))
    large = m.lt(m.const(2.0**26, "float32"), x)  # 1 is below the last bit, and 2^-e may be denormal
    f = m.share(m.select(large, m.sub(mantissa, one), exact))
    return _special(m, x, _log_of_parts(m, f, m.share(m.cast(exponent, "float32"))), edge=-1.0)


def _special(m: Math[V], x: V, result: V, edge: float) -> V:
    """`result` where edge < x < inf; x at inf and NaN; -inf at the edge, NaN below it."""
    inf = m.const(float("inf"), "float32")
    bound = like(m, x, edge)
    outside = m.select(m.eq(x, bound), m.neg(inf), m.const(float("nan"), "float32"))
    return m.select(m.lt(bound, x), m.select(m.lt(x, inf), result, x), outside)
