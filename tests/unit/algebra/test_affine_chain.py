"""Chains of scales and shifts: what gets shorter, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import AffineChain

STEP = AffineChain()
X = {"x": values(2, 3, 4)}
C = {"s": np.array(1.5), "t": np.array([-0.7]), "c": values(3, 1), "d": values(3, 1, seed=5), "w": values(4),
     "big": np.array(100.0), "z": np.array(0.0), "q": np.array(149.0),
     "r": np.array(151.25), "one": np.array(1.0), "mask": np.array(-10000.0), "low": np.array(-3.4e38)}


def graph(body: str, out: str = "T[2, 3, 4] y") -> str:
    return f"g (T[2, 3, 4] x) => ({out}) {{ {body} }}"


@pytest.mark.parametrize(("body", "left"), [
    ("a = Mul(x, s)  y = Div(a, t)", ["Mul"]),
    ("a = Add(x, s)  y = Sub(a, t)", ["Add"]),
    ("a = Div(x, s)  b = Mul(t, a)  y = Add(b, c)", ["Mul", "Add"]),
    ("a = Mul(x, c)  b = Add(a, t)  e = Mul(b, s)  y = Add(e, d)", ["Mul", "Add"]),
    ("a = Add(x, big)  b = Mul(a, s)  e = Sub(b, q)  y = Mul(e, big)", ["Mul", "Add"]),
    ("a = Add(x, s)  b = Add(a, big)  e = Mul(b, s)  y = Sub(e, r)", ["Mul", "Add"]),
    # Behind 150 no more than -0.7 is added: the first Add stays.
    ("a = Add(x, big)  b = Mul(a, s)  e = Add(b, t)  u = Mul(e, s)  y = Mul(u, c)", ["Add", "Mul", "Add"]),
    ("a = Mul(x, s)  b = Mul(a, c)  u = Relu(b)  e = Add(u, s)  y = Add(e, t)", ["Mul", "Relu", "Add"]),
])
def test_shorter(body: str, left: list[str]) -> None:
    assert rewritten(STEP, graph(body), feeds=X, **C) == left


@pytest.mark.parametrize("body", [
    "a = Mul(x, s)  y = Add(a, t)",
    "a = Add(x, t)  y = Mul(a, s)",
    "a = Add(x, s)  y = Sub(t, a)",  # still a scale of -1 and a shift
    "a = Sub(one, x)  b = Mul(a, mask)  y = Add(b, c)",  # a bias behind a mask of -10000
    "a = Sub(one, x)  b = Mul(a, low)  y = Add(b, c)",  # of which nothing would be left
    "a = Add(x, big)  y = Add(a, t)",
    "a = Mul(x, z)  b = Mul(a, s)  y = Add(b, t)",  # a scale of 0 loses what NaN and infinity say
    "a = Mul(x, c)  y = Mul(a, w)",  # [3, 1] and [4] would become [3, 4]
    "a = Add(x, s)  y = Sub(a, s)",  # nothing is left
    "a = Exp(x)  y = Mul(a, s)",
])
def test_kept(body: str) -> None:
    kept(STEP, graph(body), **C)


def test_constants_that_may_repeat_the_operand_are_kept() -> None:
    kept(STEP, "g (T[n] x) => (T[m] y) { a = Mul(x, w)  y = Mul(a, w) }", **C)  # n may be 1


def test_what_others_read_ends_the_chain() -> None:
    kept(STEP, graph("a = Mul(x, s)  y = Mul(a, t)", "T[2, 3, 4] y, T[2, 3, 4] a"), **C)
    kept(STEP, graph("a = Mul(x, s)  y = Mul(a, a)"), **C)


def test_results_that_overflow_are_kept() -> None:
    kept(STEP, graph("a = Mul(x, p)  y = Mul(a, p)"), p=np.array(1e30))
