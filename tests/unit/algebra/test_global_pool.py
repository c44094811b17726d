"""Means over images: each spelling, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import GlobalPool

STEP = GlobalPool()
W = {"w": values(4, 3, 3, 3)}
X = {"x": values(2, 3, 6, 5)}


def graph(mean: str, shape: str = "2, 4, 1, 1", middle: str = "r = Relu(k)") -> str:
    return f"g (T[2, 3, 6, 5] x) => (T[{shape}] y) {{ k = Conv(x, w)  {middle}  y = {mean} }}"


@pytest.mark.parametrize(("mean", "opset", "shape", "left"), [
    ("ReduceMean <axes = [2, 3]> (r)", 17, "2, 4, 1, 1", []),
    ("ReduceMean <axes = [-1, 2], keepdims = 1> (r)", 13, "2, 4, 1, 1", []),
    ("ReduceMean <axes = [3, 2], keepdims = 0> (r)", 13, "2, 4", ["Flatten"]),
    ("ReduceMean(r, a)", 18, "2, 4, 1, 1", []),
])
def test_rewritten(mean: str, opset: int, shape: str, left: list[str]) -> None:
    found = rewritten(STEP, graph(mean, shape), feeds=X, kinds=("float",), rtol=1e-6, opset=opset, **W,
                      a=np.array([-2, -1]))
    assert found == ["Conv", "Relu", "GlobalAveragePool", *left]


def test_means_of_channels_that_convolutions_made_one_after_the_other() -> None:
    text = graph("ReduceMean <axes = [2, 3]> (r)", "2, 8, 1, 1", "m = Relu(k)  r = Concat <axis = 1> (m, k)")
    found = rewritten(STEP, text, feeds=X, kinds=("float",), rtol=1e-6, opset=17, **W)
    assert found == ["Conv", "Relu", "Concat", "GlobalAveragePool"]


@pytest.mark.parametrize(("mean", "shape", "middle"), [
    ("ReduceMean <axes = [1, 2]> (r)", "2, 1, 1, 3", "r = Relu(k)"),
    ("ReduceMean <axes = [1, 2, 3]> (r)", "2, 1, 1, 1", "r = Relu(k)"),
    ("ReduceMean(r)", "1, 1, 1, 1", "r = Relu(k)"),
    ("ReduceSum(r, a)", "2, 4, 1, 1", "r = Relu(k)"),
    ("ReduceMean <axes = [2, 3]> (r)", "2, 4, 1, 1", "r = Exp(k)"),
    ("ReduceMean <axes = [2, 3]> (r)", "2, 4, 1, 1", "r = Concat <axis = 2> (k, k)"),
    ("ReduceMean <axes = [2, 3]> (r)", "2, 8, 1, 1", "e = Exp(k)  r = Concat <axis = 1> (k, e)"),
])
def test_kept(mean: str, shape: str, middle: str) -> None:
    kept(STEP, graph(mean, shape, middle), **W, a=np.array([2, 3]))


def test_other_types_and_ranks_are_kept() -> None:
    kept(STEP, graph("ReduceMean <axes = [2, 3]> (r)"), kind="double", **W)
    kept(STEP, "g (T[2, 3, 9] x) => (T[2, 1, 1] y) { k = Conv(x, w)  y = ReduceMean <axes = [1, 2]> (k) }",
         w=values(4, 3, 3))


def test_axes_that_are_not_constant_are_kept() -> None:
    text = "g (T[2, 3, 6, 5] x, int64[2] a) => (T[j, k, l, m] y) { k = Conv(x, w)  y = ReduceMean(k, a) }"
    kept(STEP, text, opset=18, **W)
