"""Bounds and comparisons of single arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilegraph.verify.compare import bound, compare_exact, compare_floats, implausible, largest, wide

F = np.float32


def floats(given: Any, ort: Any, reference: Any = None, rtol: float = 0.0, atol: float = 0.0) -> Any:
    ort = np.asarray(ort, F)
    exact = wide(ort) if reference is None else np.asarray(reference)
    return compare_floats(np.asarray(given, F), exact, ort, rtol, atol)


@pytest.mark.parametrize(("dtype", "eps"), [(np.float64, 2.0**-52), (np.float32, 2.0**-23), (np.float16, 2.0**-10),
                                            (ml_dtypes.bfloat16, 2.0**-7)])
def test_the_bound_is_twice_ort_s_error_or_four_eps_of_the_largest(dtype: Any, eps: float) -> None:
    assert bound(8.0, 0.0, np.dtype(dtype)) == (0.0, 4 * eps * 8)
    assert bound(8.0, 100.0, np.dtype(dtype)) == (0.0, 200.0)
    assert bound(0.0, 0.0, np.dtype(dtype)) == (0.0, 8 * min(eps, np.finfo(F).eps))


def test_the_default_tolerance_is_not_widened_except_for_quantised_graphs() -> None:
    assert bound(10.0, None, np.dtype(F)) == (1e-4, pytest.approx(1e-4))
    assert bound(10.0, None, np.dtype(F), 0.5) == (1e-4, 1.0)


def test_errors_are_measured_against_the_reference_not_ort() -> None:
    out = floats([1.0, 2.0], ort=[1.5, 2.0], reference=[1.0, 2.0])
    assert (out.problem, out.max_abs) == ("", 0.0)


def test_the_bound_is_inclusive_and_elementwise() -> None:
    assert not floats([1.5, 0.0], [1.0, 0.0], atol=0.5).problem
    assert floats([1.6, 0.0], [1.0, 0.0], atol=0.5).values
    assert not floats([110.0, 0.0], [100.0, 0.0], rtol=0.1).problem
    assert floats([100.0, 0.1], [100.0, 0.0], rtol=0.1).values


@pytest.mark.parametrize(("given", "ort", "same"), [
    ([np.nan, 1], [np.nan, 1], True), ([np.inf, 1], [np.inf, 1], True), ([-np.inf, 1], [np.inf, 1], False),
    ([0, 1], [np.nan, 1], False), ([np.nan, 1], [0, 1], False), ([np.inf, 1], [np.nan, 1], False),
    ([3e38, 1], [np.inf, 1], False),
])
def test_special_values_must_be_where_ort_has_them(given: list[float], ort: list[float], same: bool) -> None:
    assert (floats(given, ort, atol=1e30).problem == "") is same


def test_scalars_and_empty_arrays() -> None:
    assert not floats(1.0, 1.0).problem
    assert floats(1.0, 2.0).problem == "1 of 1 values are out of bounds, first at []"
    assert not floats(np.zeros((0, 3)), np.zeros((0, 3))).problem
    assert compare_exact(np.array(1), np.array(2)).max_abs == 1


def test_integers_at_the_ends_of_their_range() -> None:
    for dtype in (np.int64, np.uint64):
        ends = np.iinfo(dtype)
        out = compare_exact(np.array([ends.max], dtype), np.array([ends.min], dtype))
        assert out.max_abs == pytest.approx(2.0**64)
    assert compare_exact(np.array([2**53 + 1]), np.array([2**53])).max_abs == 1


def test_one_step_is_counted_and_two_are_refused_wherever_they_are() -> None:
    wanted = np.full(200_000, 7, np.uint8)
    given = wanted + np.uint8(1)
    out = compare_exact(given, wanted, one_step=True)
    assert (out.problem, out.off_by_one) == ("", 200_000)
    given[-1] = 9
    assert compare_exact(given, wanted, one_step=True).problem
    assert compare_exact(wanted + np.uint8(1), wanted).problem


def test_strings() -> None:
    a, b = np.array(["a", "b"], object), np.array(["a", "c"], object)
    assert not compare_exact(a, a.copy()).problem
    assert compare_exact(a, b).problem == "1 of 2 values differ, first at [1]: b instead of c"


@pytest.mark.parametrize(("reference", "ort", "told"), [
    ([1.0, 2.0], [1.0, 2.000001], ""), ([1.0, 2.0], [1.0, 2.5], "away from ORT"), ([1.0], [1.0, 2.0], "shape"),
    ([np.nan, 1], [0.0, 1], "NaN"), ([1e39, 1], [np.inf, 1], ""), ([1e30, 1], [np.inf, 1], "NaN or infinity"),
    ([2e-8, 1e-8], [8e-8, 1e-8], ""),  # ORT's sigmoid near zero
])
def test_a_reference_must_be_the_same_computation(reference: list[float], ort: list[float], told: str) -> None:
    why = implausible(np.array(reference), np.array(ort, F), False)
    assert told in why
    assert bool(why) is bool(told)


def test_largest_ignores_special_values() -> None:
    assert largest(np.array([np.inf, np.nan, -3.0, 2.0])) == 3.0
    assert largest(np.array([np.nan])) == 0.0
