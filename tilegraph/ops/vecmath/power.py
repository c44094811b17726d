"""pow: short cuts for common constant exponents, and float32 in general through float64; float64 asks libm."""

from __future__ import annotations

import math

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import at_least, at_most, horner, like
from tilegraph.ops.vecmath.coefficients import EXP_64, LOG_RATIO_64
from tilegraph.ops.vecmath.logarithm import split_positive

# Repeated squaring loses half an ulp a multiplication: up to here the error stays below 2 ulp.
_MOST_MULTIPLICATIONS = 4


def pow_constant(m: Math[V], x: V, exponent: float | int) -> V | None:
    """x ** exponent where multiplications, sqrt and at most one division do it; None for other exponents.

    Integer x: exponents 0 to 4, wrapping. Floats: integers from -4 to 4 and +-0.5, 1.5, with pow's special values
    (pow(-0, 0.5) = +0, pow(-inf, 0.5) = inf, pow(NaN, 0) = 1).
    """
    floating = m.dtype(x).startswith("float")
    n = int(exponent) if float(exponent).is_integer() else None
    if n is not None and abs(n) <= _MOST_MULTIPLICATIONS:
        if n == 0:
            return like(m, x, 1)
        if n < 0:
            return _integer_power(m, m.div(like(m, x, 1.0), x), -n) if floating else None
        return _integer_power(m, x, n)
    if not floating:
        return None
    x = m.share(x)
    if exponent == 0.5:
        return _square_root(m, x)
    if exponent == -0.5:
        return m.div(like(m, x, 1.0), _square_root(m, x))
    if exponent == 1.5:
        return m.mul(m.abs(x), _square_root(m, x))
    return None


def _integer_power(m: Math[V], x: V, n: int) -> V:
    x = m.share(x)
    if n == 1:
        return x
    square = m.share(m.mul(x, x))
    return {2: lambda: square, 3: lambda: m.mul(square, x), 4: lambda: m.mul(square, square)}[n]()


def _square_root(m: Math[V], x: V) -> V:
    """pow(x, 0.5): unlike sqrt it is +0 at -0 and inf at -inf."""
    root = m.add(m.sqrt(x), like(m, x, 0.0))
    inf = float("inf")
    return m.select(m.eq(x, like(m, x, -inf)), like(m, x, inf), root)


def pow_general(m: Math[V], x: V, y: V) -> V:
    """x ** y of two floats of one dtype, special values as in C (pow(1, NaN) = pow(NaN, 0) = 1).

    float32: at most 0.51 ulp, as log and exp are evaluated in float64 to 11 digits; about 150 instructions.
    """
    if m.dtype(x) != "float32":
        return m.libm("pow", x, y)
    x, y = m.share(x), m.share(y)
    zero, one, inf = (m.const(c, "float32") for c in (0.0, 1.0, float("inf")))
    a = m.share(m.abs(x))
    exponent = m.mul(m.cast(y, "float64"), _log_64(m, a))
    # |x| = 1 with an infinite y, and y = 0 with any x: the result is 1, also where the product is NaN.
    certain = m.lor(m.eq(y, zero), m.land(m.eq(a, one), m.lor(m.eq(x, one), m.eq(y, y))))
    magnitude = m.share(m.cast(exp_64(m, m.select(certain, m.const(0.0, "float64"), exponent)), "float32"))
    half = m.share(m.mul(y, m.const(0.5, "float32")))
    integral = m.eq(m.share(m.floor(y)), y)
    odd = m.land(integral, m.ne(m.floor(half), half))
    signed = m.select(m.land(odd, _negative(m, x)), m.neg(magnitude), magnitude)
    undefined = m.land(m.land(m.lt(x, zero), m.lt(a, inf)), m.land(m.lnot(integral), m.eq(y, y)))
    return m.select(undefined, m.const(float("nan"), "float32"), signed)


def _negative(m: Math[V], x: V) -> V:
    """The sign bit of float32 x, so true for -0."""
    return m.lt(m.bitcast(x, "int32"), m.const(0, "int32"))


def _log_64(m: Math[V], a: V) -> V:
    """log of a float32 >= 0 as float64, relative error about 3e-12; -inf at 0, inf at inf, NaN at NaN."""
    mantissa, e = split_positive(m, a)
    f = m.share(m.cast(m.sub(mantissa, m.const(1.0, "float32")), "float64"))
    log = m.fma(m.cast(e, "float64"), m.const(math.log(2.0), "float64"), m.mul(f, horner(m, LOG_RATIO_64, f)))
    zero, inf = m.const(0.0, "float32"), m.const(float("inf"), "float32")
    log = m.select(m.eq(a, zero), m.const(-float("inf"), "float64"), log)
    return m.select(m.lt(a, inf), log, m.cast(a, "float64"))


def exp_64(m: Math[V], x: V) -> V:
    """e^x of float64 with relative error 4e-11; enough range for float32 results, beyond it 0 or inf in float32."""
    x = m.share(at_most(m, at_least(m, x, -150.0), 130.0))
    # As in the float32 exp: the low bits of the shifted value are n + 1023, the exponent bits of 2^n.
    rounder = m.const(1.5 * 2.0**52 + 1023.0, "float64")
    shifted = m.share(m.fma(x, m.const(1.0 / math.log(2.0), "float64"), rounder))
    r = m.share(m.fma(m.sub(shifted, rounder), m.const(-math.log(2.0), "float64"), x))
    scale = m.bitcast(m.shl(m.bitcast(shifted, "int64"), m.const(52, "int64")), "float64")
    return m.mul(horner(m, EXP_64, r), scale)


def rsqrt(m: Math[V], x: V) -> V:
    """1 / sqrt(x), both rounded as IEEE says: at most 1 ulp."""
    return m.div(like(m, x, 1.0), m.sqrt(x))
