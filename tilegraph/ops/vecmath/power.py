"""pow: exact short cuts for common constant exponents, libm otherwise."""

from __future__ import annotations

from tilegraph.ops.math import Math, V
from tilegraph.ops.vecmath.basic import like

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
    """x ** y of two floats of one dtype, by libm."""
    return m.libm("pow", x, y)


def rsqrt(m: Math[V], x: V) -> V:
    """1 / sqrt(x), both rounded as IEEE says: at most 1 ulp."""
    return m.div(like(m, x, 1.0), m.sqrt(x))
