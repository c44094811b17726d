"""One output of one sample: the bound, and whether the candidate keeps it (docs/verify.md has the rules)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Without a better reference than ORT itself: relative to each value, and a tenth of it relative to the largest.
DEFAULT_RTOL = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
# A double run that is further from ORT's own (relative to the largest value) is not the same computation.
_PLAUSIBLE = {"float64": 1e-6, "float32": 1e-2, "float16": 0.1, "bfloat16": 0.25}
_PLAUSIBLE_QUANTISED = 0.1


@dataclass
class Comparison:
    """The outcome; `problem` is empty when the candidate is accepted."""

    problem: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    off_by_one: int = 0
    elements: int = 0
    values: bool = False  # the only problem is in the values: a tie may explain it
    notes: list[str] = field(default_factory=list)


def is_float(dtype: np.dtype[Any]) -> bool:
    """float16/32/64, and the ml_dtypes that numpy calls void-like (bfloat16, float8...)."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def default_rtol(dtype: np.dtype[Any]) -> float:
    return DEFAULT_RTOL.get(dtype.name, 8 * epsilon(dtype))


def wide(array: Array) -> Array:
    """As float64 (complex stays complex)."""
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def largest(reference: Array) -> float:
    """The largest finite magnitude."""
    values = np.abs(reference[np.isfinite(reference)])
    return float(values.max()) if values.size else 0.0


def max_error(values: Array, reference: Array) -> float:
    """The largest |values - reference| where both are finite."""
    both = np.isfinite(values) & np.isfinite(reference)
    return float(np.max(np.abs(values[both] - reference[both]), initial=0.0))


def implausible(reference: Array, ort: Array, quantised: bool, computed: np.dtype[Any] | None = None) -> str:
    """Why `reference` (float64) is not the same computation as `ort` (the model's dtype); "" if it is.

    `computed`: the dtype that `ort` was computed in, if that is a coarser one."""
    if reference.shape != ort.shape:
        return f"its shape {list(reference.shape)} is not ORT's {list(ort.shape)}"
    dtype = ort.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide(reference.astype(dtype))
    values = wide(ort)
    if not np.array_equal(_specials(narrow), _specials(values)):
        return "NaN or infinity is not where ORT has it"
    ends = np.isfinite(narrow)
    scale = largest(reference[ends])
    error = max_error(values[ends], reference[ends])
    dtype = dtype if computed is None else computed
    limit = max(_PLAUSIBLE.get(dtype.name, 0.25), _PLAUSIBLE_QUANTISED if quantised else 0.0)
    # ORT's sigmoid and tanh err by a fraction of eps absolutely: on an output near zero that is much of the value.
    if error > max(limit * scale, 8 * epsilon(dtype)):
        share = f"{error / scale:.2g} of the largest value" if scale else f"{error:.2g} where it is all zero"
        return f"it is {share} away from ORT"
    return ""


def _specials(values: Array) -> Array:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    return np.where(np.isnan(values), 1, np.where(np.isinf(values), np.where(values > 0, 2, 3), 0))


def bound(scale: float, own: float | None, dtype: np.dtype[Any],
          quantised_drift: float | None = None) -> tuple[float, float]:
    """(rtol, atol) for an output whose largest value is `scale`. `own` is ORT's own error against a better reference;
    None when ORT is the reference. Of a reference that is zero everywhere nothing is a share: x - max(x) of one number
    is 0, or a rounding of x where a product and the difference are rounded once."""
    least = 0.0 if scale else 8 * min(epsilon(dtype), float(np.finfo(np.float32).eps))
    if own is not None:
        return 0.0, max(2 * own, 4 * epsilon(dtype) * scale, least)
    rtol = default_rtol(dtype)
    return rtol, max(rtol * scale / 10, 2 * (quantised_drift or 0.0), least)


def shape_problem(given: Array, wanted: Array) -> str:
    if given.dtype != wanted.dtype:
        return f"its dtype is {given.dtype.name}, not {wanted.dtype.name}"
    if given.ndim != wanted.ndim:
        return f"its rank is {given.ndim}, not {wanted.ndim} (shape {list(given.shape)}, not {list(wanted.shape)})"
    if given.shape != wanted.shape:
        return f"its shape is {list(given.shape)}, not {list(wanted.shape)}"
    return ""


def compare_floats(given: Array, reference: Array, ort: Array, rtol: float, atol: float) -> Comparison:
    """`reference` is float64 (or complex); `ort` the original's output in the model's dtype, for specials and dtype."""
    result = Comparison(shape_problem(given, ort), rtol=rtol, atol=atol, elements=int(given.size))
    if result.problem:
        return result
    values, expected = wide(given), wide(ort)
    if values.dtype.kind == "c":
        finite_given, finite_wanted = np.isfinite(values), np.isfinite(expected)
        misplaced = finite_given != finite_wanted
    else:
        misplaced = _specials(values) != _specials(expected)
    if np.any(misplaced):
        at = tuple(int(i) for i in np.argwhere(misplaced)[0])
        count = int(np.count_nonzero(misplaced))
        result.problem = (f"NaN or infinity differs at {count} places, first at {list(at)}: {given[at]} instead of "
                          f"{ort[at]}")
    both = np.isfinite(values) & np.isfinite(expected) & np.isfinite(reference)
    error = np.abs(values[both] - reference[both])
    size = np.abs(reference[both])
    result.max_abs = float(error.max()) if error.size else 0.0
    nonzero = size > 0
    result.max_rel = float((error[nonzero] / size[nonzero]).max()) if np.any(nonzero) else 0.0
    over = error > atol + rtol * size
    if np.any(over) and not result.problem:
        where = np.argwhere(both)[np.flatnonzero(over)[0]]
        result.problem = (f"{int(np.count_nonzero(over))} of {given.size} values are out of bounds, first at "
                          f"{[int(i) for i in where]}")
        result.values = True
    return result


def compare_exact(given: Array, wanted: Array, *, one_step: bool = False) -> Comparison:
    """Integers, bools and strings: equal; quantised 8-bit values may be `one_step` off, which is counted."""
    result = Comparison(shape_problem(given, wanted), elements=int(given.size))
    if result.problem:
        return result
    different = given != wanted
    count = int(np.count_nonzero(different))
    if wanted.dtype.kind in "iu" and wanted.size:
        high, low = np.maximum(given, wanted), np.minimum(given, wanted)
        # Modulo 2^64 the difference of two integers of one type is exact.
        apart = (high.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)
        sizes = np.abs(wanted.astype(np.float64))
        result.max_abs = float(apart.max())
        result.max_rel = float(np.max(apart[sizes > 0] / sizes[sizes > 0], initial=0.0))
        if one_step:
            result.atol = 1.0
            if result.max_abs <= 1:
                result.off_by_one = count
                return result
    if count:
        at = tuple(int(i) for i in np.argwhere(different)[0])
        result.problem = (f"{count} of {given.size} values differ, first at {list(at)}: {given[at]!s} instead of "
                          f"{wanted[at]!s}")
        result.values = True
    return result
