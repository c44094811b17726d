"""Convolutions of one filter and one element, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import OneFilter

STEP = OneFilter()
W = {"w": values(1, 24, 1), "b": values(1)}


@pytest.mark.parametrize(("text", "feed", "left"), [
    ("g (T[2, 24, 7] x) => (T[2, 1, 7] y) { y = Conv(x, w, b) }", values(2, 24, 7), ["Mul", "ReduceSum", "Add"]),
    ("g (T[2, 24, 7] x) => (T[2, 1, 7] y) { y = Conv <kernel_shape = [1]> (x, w) }", values(2, 24, 7),
     ["Mul", "ReduceSum"]),
    ("g (T[N, 24, S] x) => (T[N, 1, S] y) { y = Conv <pads = [0, 0], strides = [1]> (x, w, b) }", values(2, 24, 5),
     ["Mul", "ReduceSum", "Add"]),
    ("g (T[2, 24, 7] x) => (T[2, 1, 7] y) { y = Conv <dilations = [2]> (x, w) }", values(2, 24, 7),
     ["Mul", "ReduceSum"]),
])
def test_rewritten(text: str, feed: np.ndarray, left: list[str]) -> None:
    assert rewritten(STEP, text, feeds={"x": feed}, rtol=1e-11, **W) == left


def test_an_image_of_one_element() -> None:
    found = rewritten(STEP, "g (T[3, 24, 1, 1] x) => (T[3, 1, 1, 1] y) { y = Conv(x, w, b) }",
                      feeds={"x": values(3, 24, 1, 1)}, w=values(1, 24, 1, 1), b=values(1))
    assert found == ["Mul", "ReduceSum", "Add"]


@pytest.mark.parametrize("text", [
    "g (T[2, 24, 7] x) => (T[2, 1, 4] y) { y = Conv <strides = [2]> (x, w, b) }",
    "g (T[2, 24, 7] x) => (T[2, 1, 9] y) { y = Conv <pads = [1, 1]> (x, w, b) }",
    "g (T[2, 24, 7] x, T[1] c) => (T[2, 1, 7] y) { y = Conv (x, w, c) }",
    "g (T[2, 24, 7] x, T[1, 24, 1] v) => (T[2, 1, 7] y) { y = Conv (x, v, b) }",
    "g (T[2, 24, 7] x) => (T[2, 2, 7] y) { y = Conv (x, two) }",
    "g (T[2, 24, 7] x) => (T[2, 1, 5] y) { y = Conv (x, wide) }",
    "g (T[2, 8, 7] x) => (T[2, 1, 7] y) { y = Conv (x, few) }",
    "g (T[2, 24, 5, 5] x) => (T[2, 1, 5, 5] y) { y = Conv (x, flat) }",
])
def test_kept(text: str) -> None:
    kept(STEP, text, **W, two=values(2, 24, 1), wide=values(1, 24, 3), few=values(1, 8, 1), flat=values(1, 24, 1, 1))
