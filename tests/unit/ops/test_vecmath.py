"""Vector math against libm in double precision: a sample of all float32 here, every one of them on request.

TILEGRAPH_EXHAUSTIVE=1 pytest -m slow tests/unit/ops     # 2^32 values a function, about a minute each
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.unit.ops.c_math import compiler, sweep
from tests.unit.ops.numpy_math import NumpyMath
from tilegraph.ops import vecmath

ROOT = Path(__file__).parents[3]


class Bound(NamedTuple):
    """The reference in C, and the largest errors in ulp with a fused and with a twice-rounded fma."""

    reference: str
    fused: float
    twice: float
    signed: bool = True  # the sign of a zero result is the reference's


BOUNDS = {
    "exp": Bound("std::exp(x)", 0.95, 1.25),
    "exp_minus_abs": Bound("std::exp(-std::fabs(x))", 0.95, 1.25),
    "expm1": Bound("std::expm1(x)", 1.65, 1.75, signed=False),
    "log": Bound("std::log(x)", 0.95, 1.05),
    "log1p": Bound("std::log1p(x)", 1.75, 1.85, signed=False),
    "tanh": Bound("std::tanh(x)", 2.6, 2.7),
    "erf": Bound("std::erf(x)", 4.2, 4.8),
    "sigmoid": Bound("x < -88.376 ? 0 : x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x))", 2.55, 2.65),
    "softplus": Bound("x != x ? x : std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x)))", 2.2, 2.7),
    "sin": Bound("std::sin(x)", 1.6, 1.6),
    "cos": Bound("std::cos(x)", 1.6, 1.6),
    "tan": Bound("std::tan(x)", 3.7, 4.0),
    "asin": Bound("std::asin(x)", 2.6, 2.6),
    "acos": Bound("std::acos(x)", 1.4, 1.4),
    "atan": Bound("std::atan(x)", 1.4, 1.5),
    "sinh": Bound("std::sinh(x)", 0.65, 0.7),
    "cosh": Bound("std::cosh(x)", 0.502, 0.502),
    "asinh": Bound("std::asinh(x)", 2.2, 2.2),
    "acosh": Bound("std::acosh(x)", 2.5, 2.5),
    "atanh": Bound("std::atanh(x)", 2.5, 2.5),
    # Below -87.3 e^x is denormal: its error of half a step counts |x| times.
    "mish": Bound("x * std::tanh(std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))))", 53, 53),
}


def check(name: str, folder: Path, step: int) -> None:
    bound = BOUNDS[name]
    fused, twice = sweep(getattr(vecmath, name), bound.reference, folder, step, bound.signed)
    assert fused.special == 0, f"{name}({fused.special_at!r}) and {fused.special - 1} more"
    assert twice.special == 0, f"{name}({twice.special_at!r}) and {twice.special - 1} more"
    assert fused.error <= bound.fused, f"{fused.error} ulp at {fused.at!r}"
    assert twice.error <= bound.twice, f"{twice.error} ulp at {twice.at!r}"
    assert fused.error > 0.4, "a result this good means that nothing was compared"


needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@needs_compiler
@pytest.mark.parametrize("name", BOUNDS)
def test_sampled(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, step=2003)


@needs_compiler
@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TILEGRAPH_EXHAUSTIVE") != "1", reason="set TILEGRAPH_EXHAUSTIVE=1")
@pytest.mark.parametrize("name", BOUNDS)
def test_every_float32(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, step=1)


SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(math.inf, math.inf), (-math.inf, 0.0), (0.0, 1.0), (-104.0, 0.0), (89.0, math.inf)],
    "expm1": [(math.inf, math.inf), (-math.inf, -1.0), (0.0, 0.0), (89.0, math.inf), (-50.0, -1.0)],
    "log": [
        (0.0, -math.inf),
        (-0.0, -math.inf),
        (-1.0, math.nan),
        (-math.inf, math.nan),
        (math.inf, math.inf),
        (1.0, 0.0),
    ],
    "log1p": [(-1.0, -math.inf), (-1.5, math.nan), (-math.inf, math.nan), (math.inf, math.inf), (0.0, 0.0)],
    "tanh": [(math.inf, 1.0), (-math.inf, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e-45, 1e-45), (9.5, 1.0)],
    "erf": [(math.inf, 1.0), (-math.inf, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e-45, 1e-45), (4.5, 1.0)],
    "sigmoid": [(math.inf, 1.0), (-math.inf, 0.0), (0.0, 0.5), (-0.0, 0.5), (-104.0, 0.0)],
    "softplus": [(math.inf, math.inf), (-math.inf, 0.0), (100.0, 100.0)],
    "sin": [(math.inf, math.nan), (-math.inf, math.nan), (0.0, 0.0), (-0.0, -0.0), (1e-45, 1e-45)],
    "cos": [(math.inf, math.nan), (-math.inf, math.nan), (0.0, 1.0), (-0.0, 1.0)],
    "tan": [(math.inf, math.nan), (-math.inf, math.nan), (0.0, 0.0), (-0.0, -0.0), (1e-45, 1e-45)],
    "asin": [(1.0, math.pi / 2), (-1.0, -math.pi / 2), (1.0000001, math.nan), (math.inf, math.nan), (-0.0, -0.0)],
    "acos": [(1.0, 0.0), (-1.0, math.pi), (-1.0000001, math.nan), (-math.inf, math.nan), (-0.0, math.pi / 2)],
    "atan": [(math.inf, math.pi / 2), (-math.inf, -math.pi / 2), (0.0, 0.0), (-0.0, -0.0), (3e38, math.pi / 2)],
    "sinh": [(math.inf, math.inf), (-math.inf, -math.inf), (0.0, 0.0), (-0.0, -0.0), (90.0, math.inf)],
    "cosh": [(math.inf, math.inf), (-math.inf, math.inf), (0.0, 1.0), (-90.0, math.inf)],
    "asinh": [(math.inf, math.inf), (-math.inf, -math.inf), (0.0, 0.0), (-0.0, -0.0)],
    "acosh": [(math.inf, math.inf), (1.0, 0.0), (0.99999994, math.nan), (-2.0, math.nan), (-math.inf, math.nan)],
    "atanh": [(1.0, math.inf), (-1.0, -math.inf), (1.0000001, math.nan), (math.inf, math.nan), (-0.0, -0.0)],
    "mish": [(math.inf, math.inf), (-math.inf, math.nan), (0.0, 0.0), (-0.0, -0.0)],
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, fused: bool) -> None:
    table = [*SPECIAL[name], (math.nan, math.nan)]
    x = np.array([at for at, _ in table], np.float32)
    ours = getattr(vecmath, name)(NumpyMath(fused), x)
    assert ours.dtype == np.float32
    expected = np.array([value for _, value in table], np.float32)
    np.testing.assert_array_equal(ours, expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(ours[zeros]), np.signbit(expected[zeros]))


def test_exp_thresholds() -> None:
    """The last finite result, the first infinity, the last denormal and the first zero."""
    x = np.array([88.72283, 88.72284, -103.97207, -103.97208, -87.5], np.float32)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    with np.errstate(all="ignore"):
        ours = vecmath.exp(NumpyMath(), x)
    step = np.float32(1e-45)
    assert np.isfinite(ours[0])
    assert np.isinf(ours[1]) == np.isinf(expected[1])
    assert np.all(np.abs(ours[2:4] - expected[2:4]) <= step)
    assert abs(ours[4] - expected[4]) <= step


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_and_bounded(name: str) -> None:
    x = np.linspace(0, 12, 500_001, dtype=np.float32)
    for fused in (False, True):
        y = getattr(vecmath, name)(NumpyMath(fused), x)
        assert y.max() == 1.0
        np.testing.assert_array_equal(getattr(vecmath, name)(NumpyMath(fused), -x), -y)


@pytest.mark.parametrize("name", [*BOUNDS])
def test_float16_arguments_are_rounded_right(name: str) -> None:
    """Every float16, computed in float32 and rounded: at most one float16 ulp from the rounded double."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    m = NumpyMath()
    with np.errstate(all="ignore"):
        ours = vecmath.round_to_half(m, getattr(vecmath, name)(m, x.astype(np.float32)))
        truth = getattr(vecmath, name)(m, x.astype(np.float64)).astype(np.float16).astype(np.float32)
    nan = np.isnan(truth)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    different = (ours != truth) & ~nan
    assert different.mean() < 1e-3  # ties that float32's rounding decides the other way
    # Neighbouring float16 numbers have neighbouring bits.
    a, b = (v[different].astype(np.float16).view(np.int16).astype(int) for v in (ours, truth))
    assert np.all(np.abs(a - b) <= 1)


@pytest.mark.parametrize(
    ("function", "target"), [(vecmath.round_to_half, np.float16), (vecmath.round_to_bfloat16, ml_dtypes.bfloat16)]
)
def test_rounding_to_16_bits(function: Any, target: Any) -> None:
    """Every 16-bit value, the points half way between neighbours, their neighbours, and a sample of all float32."""
    exact = np.arange(2**16, dtype=np.uint16).view(target).astype(np.float32)
    finite = np.sort(exact[np.isfinite(exact)])
    middle = (finite[1:].astype(np.float64) + finite[:-1].astype(np.float64)) / 2
    middle32 = middle.astype(np.float32)
    inf = np.float32(np.inf)
    sample = np.arange(0, 2**32, 2003, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array([65504, 65519.996, 65520, 65536, 3.3895e38, 3.3961776e38, 3.4028235e38], np.float32)
    x = np.concatenate(
        [exact, middle32, np.nextafter(middle32, inf), np.nextafter(middle32, -inf), sample, edges, -edges]
    )
    ours = function(NumpyMath(), x)
    with np.errstate(all="ignore"):
        expected = x.astype(target).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours[~nan].view(np.uint32), expected[~nan].view(np.uint32))


POWERS = [0.25, 0.3333333, 2.5, 5.0, -7.0, 1e-3, math.inf, math.nan]
BASES = [0.25, 2.5, 1.0, -1.0, -2.5, 0.0, -0.0, math.inf, -math.inf, math.nan]


def c_constant(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    return f"{'-' if value < 0 else ''}INFINITY" if math.isinf(value) else repr(float(np.float32(value)))


@needs_compiler
@pytest.mark.parametrize("exponent", POWERS)
def test_pow_of_a_sample_of_bases(exponent: float, tmp_path: Path) -> None:
    def function(m: Any, x: Any) -> Any:
        return vecmath.pow_general(m, x, m.const(exponent, "float32"))

    for report in sweep(function, f"std::pow(x, {c_constant(exponent)})", tmp_path, step=4001):
        assert report.special == 0, report
        assert report.error <= 0.502, report


@needs_compiler
@pytest.mark.parametrize("base", BASES)
def test_pow_of_a_sample_of_exponents(base: float, tmp_path: Path) -> None:
    def function(m: Any, x: Any) -> Any:
        return vecmath.pow_general(m, m.const(base, "float32"), x)

    for report in sweep(function, f"std::pow({c_constant(base)}, x)", tmp_path, step=4001):
        assert report.special == 0, report
        assert report.error <= 0.502, report


def c_pow(x: float, y: float) -> float:
    """C's pow, whose special values are not numpy's: pow(-inf, 0.5) is inf."""
    try:
        return math.pow(x, y)
    except ValueError:  # a negative base, or 0 to a negative power
        return math.nan if x != 0 else math.copysign(math.inf, x if y % 2 == 1 else 1.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constant_powers(dtype: str) -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-30, 1e30, np.inf, -np.inf, np.nan], dtype)
    m = NumpyMath()
    for exponent in (-4, -3, -2, -1, 0, 1, 2, 3, 4, 0.5, -0.5, 1.5):
        ours = vecmath.pow_constant(m, x, exponent)
        assert ours is not None
        ours = np.broadcast_to(ours, x.shape)
        with np.errstate(all="ignore"):
            expected = np.array([c_pow(float(v), exponent) for v in x]).astype(dtype)
        np.testing.assert_allclose(ours, expected, rtol=4 * np.finfo(dtype).eps, atol=0)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(ours[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("exponent", [5, -5, 0.25, 2.5, math.inf, -math.inf, math.nan])
def test_other_exponents_have_no_short_cut(exponent: float) -> None:
    assert vecmath.pow_constant(NumpyMath(), np.ones(3, np.float32), exponent) is None


def test_coefficients_are_what_the_fit_gives() -> None:
    """The table can be regenerated; least squares may differ in the last bits between machines."""
    script = ROOT / "tools" / "fit_vecmath.py"
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # many tiny systems: threads only wait for each other
    command = [sys.executable, str(script)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread).stdout
    fitted: dict[str, Any] = {}
    exec(text, fitted)
    from tilegraph.ops.vecmath import coefficients

    names = [n for n in vars(coefficients) if n.isupper()]
    assert names
    for name in names:
        kept, again = np.atleast_1d(getattr(coefficients, name)), np.atleast_1d(fitted[name])
        assert kept.shape == again.shape
        if not name.endswith("_64") and name != "TWO_OVER_PI":
            assert np.all(kept == kept.astype(np.float32))
        # High orders are ill-conditioned; what counts is that the polynomials agree where they are used.
        x = np.linspace(0, 1, 50)
        np.testing.assert_allclose(np.polyval(kept[::-1], x), np.polyval(again[::-1], x), rtol=1e-5, atol=1e-6)
