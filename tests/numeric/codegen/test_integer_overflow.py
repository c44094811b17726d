"""Sums, differences and products of integers that leave their type wrap round, and what reads them sees that value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numeric.codegen.runner import lower
from tests.numeric.codegen.test_special_values import ort_run, ours_run
from tests.unit.fusion.parse import model
from tilegraph.ops.prims import Decline

Array = np.ndarray[Any, Any]
NAMES: dict[str, Any] = {"int32": np.int32, "int64": np.int64, "uint32": np.uint32, "uint64": np.uint64}
SIZE = 53  # vectors and a tail


def values(dtype: str, seed: int) -> Array:
    """Over the whole range, its ends among them."""
    limits = np.iinfo(NAMES[dtype])
    rng = np.random.default_rng(seed)
    made = rng.integers(limits.min, limits.max, size=SIZE, dtype=NAMES[dtype], endpoint=True)
    made[:6] = limits.min, limits.max, 0, 1, limits.max, limits.min
    return made


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_a_limit_on_a_value_that_wrapped(dtype: str, op: str) -> None:
    """An optimizer that believes that nothing overflows drops the comparison: x + c > x for c > 0."""
    low, high = (-3, 4) if dtype.startswith("i") else (3, 200)
    text = (f"({dtype}[{SIZE}] x, {dtype}[{SIZE}] y) => ({dtype}[{SIZE}] z, bool[{SIZE}] b, bool[{SIZE}] d) {{ "
            f"low = Constant<value = {dtype} {{{low}}}>() high = Constant<value = {dtype} {{{high}}}>() "
            f"two = Constant<value = {dtype} {{2}}>() "
            f"a = {op}(x, y) m = Mul(a, two) z = Clip(m, low, high) p = {op}(x, high) b = Less(p, x) d = Less(x, m) }}")
    feeds = {"x": values(dtype, 1), "y": values(dtype, 2)}
    wanted, found = ort_run(text, feeds, 21), ours_run(text, feeds, 21)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_opposites_of_the_smallest_integers() -> None:
    text = (f"(int32[{SIZE}] x, int64[{SIZE}] y) => (int32[{SIZE}] a, int64[{SIZE}] b, int32[{SIZE}] c, "
            f"int64[{SIZE}] d) {{ a = Neg(x) b = Neg(y) c = Abs(x) d = Abs(y) }}")
    feeds = {"x": values("int32", 3), "y": values("int64", 4)}
    for a, b in zip(ort_run(text, feeds, 21), ours_run(text, feeds, 21), strict=True):
        np.testing.assert_array_equal(a, b)


REDUCTIONS = ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceMean")


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_stay_inside_the_range(op: str, axis: int) -> None:
    """As ONNX Runtime's, which end at the limits. Small numbers are reduced exactly, means towards zero."""
    shape = "53,1" if axis else "1,53"
    text = (f"(int32[53,53] x) => (int32[{shape}] y) {{ a = Constant<value = int64[1] {{{axis}}}>() y = {op}(x, a) }}")
    x = np.array([np.roll(values("int32", 5), k) for k in range(53)])
    x[::3] = np.random.default_rng(6).integers(-3, 4, size=x[::3].shape)
    x[:, ::3] = np.random.default_rng(7).integers(-3, 4, size=x[:, ::3].shape)
    if op == "ReduceProd":
        x[x == 0] = 1  # beside products that leave float64, too
    feeds = {"x": x}
    for a, b in zip(ort_run(text, feeds, 21), ours_run(text, feeds, 21), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sums_of_64_bits_are_left_to_onnx_runtime() -> None:
    made = model("(int64[4,5] x) => (int64[4,1] y) { a = Constant<value = int64[1] {1}>() y = ReduceSum(x, a) }", 21)
    with pytest.raises(Decline, match="53 bits"):
        lower(list(made.graph), list(made.graph.outputs), 21)


def test_the_sign_of_a_first_zero_of_running_sums() -> None:
    text = "(float[3,4] x) => (float[3,4] y) { a = Constant<value = int64 {0}>() y = CumSum(x, a) }"
    feeds = {"x": np.array([[-0.0, 0.0, 1, -0.0], [-0.0, -0.0, 2, 3], [0.0, -0.0, -3, -3]], np.float32)}
    (wanted,), (found,) = ort_run(text, feeds, 21), ours_run(text, feeds, 21)
    np.testing.assert_array_equal(np.signbit(wanted), np.signbit(found))
    np.testing.assert_array_equal(wanted, found)
