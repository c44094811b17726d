"""Derives the polynomial coefficients of `tilegraph.ops.vecmath` and writes them as a Python module.

    python tools/fit_vecmath.py > tilegraph/ops/vecmath/coefficients.py

Method: for each function a weighted minimax polynomial on Chebyshev points by Lawson's iteration (least squares
whose weights are multiplied by the last error until the error is level; C. L. Lawson, "Contributions to the theory
of linear least maximum approximation", 1961). Coefficients become float32 one at a time, lowest order first, and
the rest are fitted again after each rounding, so that later coefficients absorb the earlier rounding errors.
Only Python's own `math` and numpy's least squares are used; the functions are evaluated in double precision, whose
error is far below the float32 target. Polynomials that are evaluated in float64 keep their float64 coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
POINTS = 3000
ROUNDS = 120


def chebyshev_points(low: float, high: float) -> Array:
    k = np.arange(POINTS)
    return 0.5 * (low + high) - 0.5 * (high - low) * np.cos(math.pi * (k + 0.5) / POINTS)


def lawson(powers: Array, target: Array, weight: Array) -> Array:
    """Coefficients c that minimise max |weight * (target - powers @ c)|."""
    w = np.full(len(target), 1.0 / len(target))
    best, best_error = np.zeros(powers.shape[1]), math.inf
    scale = np.abs(powers).max(axis=0)
    for _ in range(ROUNDS):
        root = np.sqrt(w) * weight
        c, *_ = np.linalg.lstsq(powers / scale * root[:, None], target * root, rcond=None)
        c = c / scale
        error = np.abs(weight * (target - powers @ c))
        if error.max() < best_error:
            best, best_error = c, float(error.max())
        w = w * error
        w /= w.sum()
    return best


def fit(
    target: Callable[[float], float],
    weight: Callable[[float], float],
    low: float,
    high: float,
    degree: int,
    dtype: type[np.floating] = np.float32,
) -> tuple[list[float], float]:
    """Coefficients in `dtype`, lowest order first, of a polynomial for `target`, and its largest weighted error."""
    x = chebyshev_points(low, high)
    t = np.array([target(v) for v in x])
    w = np.array([weight(v) for v in x])
    if dtype is np.float64:
        powers = x[:, None] ** np.arange(degree + 1)[None, :]
        c = lawson(powers, t, w)
        return [float(v) for v in c], float(np.abs(w * (t - powers @ c)).max())
    fixed: list[float] = []
    rest = t
    for order in range(degree + 1):
        powers = x[:, None] ** np.arange(order, degree + 1)[None, :]
        c = lawson(powers, rest, w)
        fixed.append(float(np.float32(c[0])))
        rest = rest - fixed[-1] * x**order
    return fixed, float(np.abs(w * rest).max())


def exp_tail(r: float) -> float:
    """(e^r - 1 - r) / r^2."""
    if abs(r) < 0.03:
        return sum(r**k / math.factorial(k + 2) for k in range(10))
    return (math.expm1(r) - r) / (r * r)


def log_tail(f: float) -> float:
    """(log(1 + f) - f + f^2 / 2) / f^3."""
    if abs(f) < 0.05:
        return sum((-f) ** k / (k + 3) for k in range(16))
    return (math.log1p(f) - f + 0.5 * f * f) / f**3


def log1p_ratio(t: float) -> float:
    """log(1 + t) / t."""
    return math.log1p(t) / t


def log_ratio(f: float) -> float:
    """log(1 + f) / f."""
    return math.log1p(f) / f if f else 1.0


def erf_ratio(u: float) -> float:
    """erf(x) / x with x^2 = (u + 1) / 2 * ERF_LIMIT^2."""
    x = math.sqrt(max(u + 1.0, 0.0) / 2.0) * ERF_LIMIT
    return math.erf(x) / x if x > 1e-6 else 2.0 / math.sqrt(math.pi)


def saturating(coefficients: list[float], error: float) -> tuple[list[float], float]:
    """One unit in the last place more in the square's coefficient: erf(ERF_LIMIT) then rounds to 1 exactly."""
    coefficients[2] = float(np.nextafter(np.float32(coefficients[2]), np.float32(math.inf)))
    return coefficients, error


def sin_tail(z: float) -> float:
    """(sin t - t) / t^3 with t = sqrt(z)."""
    return sum((-1) ** (k + 1) * z**k / math.factorial(2 * k + 3) for k in range(12))


def cos_tail(z: float) -> float:
    """(cos t - 1 + t^2 / 2) / t^4 with t = sqrt(z)."""
    return sum((-1) ** k * z**k / math.factorial(2 * k + 4) for k in range(12))


def atan_tail(z: float) -> float:
    """(atan t - t) / t^3 with t = sqrt(z)."""
    if z < 0.02:
        return sum((-1) ** (k + 1) * z**k / (2 * k + 3) for k in range(12))
    t = math.sqrt(z)
    return (math.atan(t) - t) / (t * z)


def asin_tail(z: float) -> float:
    """(asin t - t) / t^3 with t = sqrt(z)."""
    if z < 0.02:
        total, term = 0.0, 1.0
        for k in range(1, 14):
            term *= (2 * k - 1) / (2 * k)
            total += term * z ** (k - 1) / (2 * k + 1)
        return total
    t = math.sqrt(z)
    return (math.asin(t) - t) / (t * z)


def two_over_pi_chunks(width: int, count: int) -> list[float]:
    """2/pi as `count` numbers of `width` bits each, whose sum is 2/pi cut off at width * count bits.

    pi from Machin's formula 16 atan(1/5) - 4 atan(1/239), in integers.
    """
    bits = width * count + 64

    def arctan_of_inverse(n: int) -> int:
        term = (1 << bits) // n
        total, k = term, 1
        while term:
            term //= n * n
            k += 2
            total += -term // k if k % 4 == 3 else term // k
        return total

    pi = 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
    value = (2 << (2 * bits)) // pi >> (bits - width * count)
    return [math.ldexp(value >> (width * (count - 1 - i)) & ((1 << width) - 1), -width * (i + 1)) for i in range(count)]


QUARTER_PI_SQUARED = 0.6170  # a little beyond (pi/4)^2
ERF_LIMIT = float(np.float32(3.92))  # erf(3.92) rounds to 1
HALF_LN2 = 0.3467  # a little beyond ln(2)/2: the rounding of x/ln2 to an integer is itself inexact

FITS: dict[str, tuple[str, Callable[[], tuple[list[float], float]]]] = {
    "EXP_TAIL": (
        "(e^r - 1 - r) / r^2 on |r| <= ln(2)/2; the error is relative to e^r - 1",
        lambda: fit(exp_tail, lambda r: r * r / abs(math.expm1(r)), -HALF_LN2, HALF_LN2, 4),
    ),
    "LOG_TAIL": (
        "(log(1+f) - f + f^2/2) / f^3 on [-1/3, 1/3]; the error is relative to log(1+f)",
        lambda: fit(log_tail, lambda f: abs(f**3 / math.log1p(f)), -0.33334, 0.33334, 7),
    ),
    "LOG1P_RATIO": (
        "log(1+t) / t on [0, 1]; relative error",
        lambda: fit(log1p_ratio, lambda t: t / math.log1p(t), 0.0, 1.0, 9),
    ),
    "ERF_RATIO": (
        "erf(x) / x in u = 2 x^2 / ERF_LIMIT^2 - 1 on [-1, 1]; relative error",
        lambda: saturating(*fit(erf_ratio, lambda u: 1.0 / erf_ratio(u), -1.0, 1.0, 15)),
    ),
    "SIN_TAIL": (
        "(sin t - t) / t^3 in z = t^2 on |t| <= pi/4; the error is relative to sin t",
        lambda: fit(sin_tail, lambda z: z / (1.0 + z * sin_tail(z)), 0.0, QUARTER_PI_SQUARED, 3),
    ),
    "COS_TAIL": (
        "(cos t - 1 + t^2 / 2) / t^4 in z = t^2 on |t| <= pi/4; the error is relative to cos t",
        lambda: fit(cos_tail, lambda z: z * z / math.cos(math.sqrt(z)), 0.0, QUARTER_PI_SQUARED, 2),
    ),
    "ATAN_TAIL": (
        "(atan t - t) / t^3 in z = t^2 on 0 <= t <= 1; the error is relative to atan t",
        lambda: fit(atan_tail, lambda z: z / (1.0 + z * atan_tail(z)), 0.0, 1.0, 8),
    ),
    "ASIN_TAIL": (
        "(asin t - t) / t^3 in z = t^2 on 0 <= t <= 1/2; the error is relative to asin t",
        lambda: fit(asin_tail, lambda z: z / (1.0 + z * asin_tail(z)), 0.0, 0.2501, 4),
    ),
    "LOG_RATIO_64": (
        "log(1+f) / f on [-1/3, 1/3] for evaluation in float64; relative error",
        lambda: fit(log_ratio, lambda f: 1.0 / log_ratio(f), -0.33334, 0.33334, 13, np.float64),
    ),
    "EXP_64": (
        "e^r on |r| <= ln(2)/2 for evaluation in float64; relative error",
        lambda: fit(math.exp, lambda r: math.exp(-r), -HALF_LN2, HALF_LN2, 7, np.float64),
    ),
}


def main() -> None:
    print(
        '"""Generated by tools/fit_vecmath.py (the method is stated there): lowest order first; float32 unless _64."""'
    )
    print(f"\nERF_LIMIT = {ERF_LIMIT!r}  # erf of it rounds to 1")
    print("\n# 2/pi in chunks of 29 bits: their products with a float32 are exact in float64.\nTWO_OVER_PI = (")
    for chunk in two_over_pi_chunks(29, 7):
        print(f"    {chunk!r},")
    print(")")
    for name, (what, run) in FITS.items():
        coefficients, error = run()
        print(f"\n# {what}.\n# Largest approximation error before evaluation rounding: {error:.2g}.\n{name} = (")
        for c in coefficients:
            print(f"    {c!r},")
        print(")")


if __name__ == "__main__":
    main()
