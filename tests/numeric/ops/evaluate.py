"""Evaluates entries of the operator table with numpy as a kernel would: widened operands, rounded results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit.ops.numpy_math import NumpyMath
from tilegraph.ops.pointwise import CONSTANTS, POINTWISE

A = NDArray[Any]
WIDENED = ("float16", "bfloat16")


def widen(a: A | None) -> A | None:
    return a.astype(np.float32) if a is not None and a.dtype.name in WIDENED else a


def evaluate(
    op_type: str,
    inputs: Sequence[A | None],
    out_dtype: str,
    attrs: Mapping[str, Any] | None = None,
    domain: str = "",
    opset: int = 21,
    constants: Mapping[int, float | int] | None = None,
) -> A:
    """The result in `out_dtype` (a numpy name, float16 included). AssertionError if the table declines."""
    op = POINTWISE[domain, op_type]
    wide = [widen(a) for a in inputs]
    attributes = dict(attrs or {})
    if constants:
        attributes[CONSTANTS] = dict(constants)
    reason = op.accepts([None if a is None else a.dtype.name for a in wide], attributes, opset)
    assert reason is None, reason
    computing = "float32" if out_dtype in WIDENED else out_dtype
    result = op.fn(NumpyMath(), wide, attributes, computing)
    assert result.dtype.name == computing
    shape = np.broadcast_shapes(*(a.shape for a in inputs if a is not None))
    with np.errstate(all="ignore"):
        return np.broadcast_to(result, shape).astype(out_dtype)


def bits(a: A) -> A:
    """Integers that are equal for equal values: signed zeros differ, all NaNs are one."""
    if a.dtype.kind != "f":
        return a
    plain = np.where(np.isnan(a), a.dtype.type(np.nan), a)
    return plain.view(f"u{a.dtype.itemsize}")


def assert_same(ours: A, theirs: A, inputs: Sequence[A | None], skip: A | None = None) -> None:
    """Bit for bit, except where `skip`."""
    assert ours.dtype == theirs.dtype
    wrong = bits(ours) != bits(theirs)
    if skip is not None:
        wrong &= ~skip
    _report(wrong, ours, theirs, inputs)


def _report(wrong: A, ours: A, theirs: A, inputs: Sequence[A | None]) -> None:
    if wrong.any():
        k = int(np.argmax(wrong))
        operands = [None if a is None else np.broadcast_to(a, wrong.shape)[k] for a in inputs]
        count = f"{wrong.sum()} of {wrong.size} differ"
        raise AssertionError(f"{count}, first at {operands}: {ours[k]!r}, not {theirs[k]!r}")


def assert_close(
    ours: A, truth: A, theirs: A | None, inputs: Sequence[A | None], scale: A | None = None, steps: float = 1.0
) -> None:
    """Error against `truth` (float64) at most max(twice ONNX Runtime's, 4 eps * scale), or `steps` denormal steps.

    `scale` is |truth| unless an intermediate result is larger by the operator's definition. NaN and infinities must
    be where ONNX Runtime has them, or where the rounded truth has them if it cannot run the operator.
    """
    info = np.finfo(ours.dtype)
    with np.errstate(all="ignore"):
        placed = truth.astype(ours.dtype) if theirs is None else theirs
        misplaced = (np.isnan(ours) != np.isnan(placed)) | (np.isinf(ours) != np.isinf(placed))
        misplaced |= np.isinf(ours) & (ours != placed)
        _report(misplaced, ours, placed, inputs)
        finite = np.isfinite(ours) & np.isfinite(placed)
        wide, reference = ours.astype(np.float64), np.where(finite, truth, 0.0)
        error = np.abs(np.where(finite, wide, 0.0) - reference)
        bound = 4 * float(info.eps) * np.abs(reference if scale is None else np.where(finite, scale, 0.0))
        bound = np.maximum(bound, steps * float(info.smallest_subnormal))
        if theirs is not None:
            bound = np.maximum(bound, 2 * np.abs(np.where(finite, theirs.astype(np.float64), 0.0) - reference))
    _report(error > bound, ours, truth, inputs)
