"""Kernels whose vectors lie across the rows: symbolic extents, tasks that cut anywhere, memory between fences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numeric.codegen.runner import compile_lowered
from tests.unit.fusion.parse import lowered
from tilegraph.codegen.isa import Isa, host

Array = np.ndarray[Any, Any]

SUM = """(float[A,M,N] x) => (float[A,1,N] y) { a = Constant<value = int64[1] {1}>() y = ReduceSum(x, a) }"""
SOFTMAX = "(float[A,M,N] x) => (float[A,M,N] y) { y = Softmax<axis=1>(x) }"
RUNNING = """(float[A,M,N] x) => (float[A,M,N] y) { a = Constant<value_int=1>()
    y = CumSum<reverse=1, exclusive=1>(x, a) }"""
PLACES = "(float[A,M,N] x) => (int64[A,1,N] y) { y = ArgMin<axis=1>(x) }"


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def behind(x: Array) -> Array:
    running = np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
    return running - x


EXPECTED = {
    "sum": (SUM, lambda x: x.sum(axis=1, keepdims=True)),
    "softmax": (SOFTMAX, softmax),
    "running": (RUNNING, behind),
    "places": (PLACES, lambda x: x.argmin(axis=1)[:, None]),
}
LEVELS = [isa for isa in (Isa("x86-64-v3"), Isa("x86-64-v4")) if isa.base <= host().base]


@pytest.mark.parametrize("isa", LEVELS, ids=lambda isa: isa.base)
@pytest.mark.parametrize("name", EXPECTED)
def test_any_extents(name: str, isa: Isa) -> None:
    text, expected = EXPECTED[name]
    kernel = compile_lowered(lowered(text, 18), isa)
    assert kernel.space.across is not None
    rng = np.random.default_rng(1)
    for shape in ((1, 1, 1), (2, 5, 7), (3, 64, 16), (1, 200, 33), (2, 3, 300)):
        x = rng.normal(size=shape).astype(np.float32)
        want = expected(x.astype(np.float64))
        for tasks in (1, 3):
            (ours,) = kernel.run({"x": x}, tasks, offset=4 if tasks == 3 else 0)
            assert ours.shape == want.shape
            assert np.abs(ours - want).max() <= 1e-6 * max(1, shape[1]) ** 0.5 * max(1.0, float(np.abs(want).max()))
        kernel.check_fences({"x": x}, 2)


def test_long_sums_lose_no_more_than_pairs_would() -> None:
    """100,000 equal numbers: one running sum in float32 would be off by some 1e-3, partial sums are not."""
    kernel = compile_lowered(lowered(SUM, 18))
    x = np.full((1, 100_000, 16), 0.1, np.float32)
    (ours,) = kernel.run({"x": x})
    exact = x.astype(np.float64).sum(axis=1, keepdims=True)
    assert np.abs(ours / exact - 1).max() < 3e-5
    assert abs(float(np.cumsum(x[0, :, 0], dtype=np.float32)[-1]) / float(exact[0, 0, 0]) - 1) > 1e-4
