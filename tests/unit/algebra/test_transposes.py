"""Transposes that cancel: what may stand between them, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import Transposes

STEP = Transposes()
X = {"x": values(2, 3, 4, 5)}
IN, BACK = "Transpose <perm = [0, 2, 3, 1]>", "Transpose <perm = [0, 3, 1, 2]>"
C = {"s": np.array(1.5), "c": values(3), "d": values(4, 1, 3), "e": values(1, 4, 5, 3)}


def graph(body: str, inputs: str = "T[2, 3, 4, 5] x", out: str = "T[2, 3, 4, 5] y") -> str:
    return f"g ({inputs}) => ({out}) {{ {body} }}"


@pytest.mark.parametrize(("between", "left"), [
    ("b = Relu(a)", ["Relu"]),
    ("p = Mul(a, s)  q = Add(c, p)  r = Sub(q, d)  b = Div(r, e)", ["Mul", "Add", "Sub", "Div"]),
    ("p = Sigmoid(a)  b = Mul(a, p)", ["Sigmoid", "Mul"]),
    ("p = Cast <to = 11> (a)  q = Exp(p)  b = CastLike(q, a)", None),
    ("p = Greater(a, s)  b = Where(p, a, c)", ["Greater", "Where"]),
])
def test_between_two(between: str, left: list[str] | None) -> None:
    text = graph(f"a = {IN} (x)  {between}  y = {BACK} (b)")
    if left is None:
        kept(STEP, text, **C)  # CastLike is not in the list
    else:
        assert rewritten(STEP, text, feeds=X, rtol=0, **C) == left


def test_nothing_between() -> None:
    assert rewritten(STEP, graph(f"a = {IN} (x)  b = {BACK} (a)  y = Neg(b)"), feeds=X, rtol=0) == ["Neg"]


def test_default_permutations() -> None:
    text = "g (T[2, 3] x) => (T[2, 3] y) { a = Transpose(x)  b = Relu(a)  c = Transpose(b)  y = Neg(c) }"
    assert rewritten(STEP, text, feeds={"x": values(2, 3)}, rtol=0) == ["Relu", "Neg"]


def test_a_residual_sum_with_two_exits() -> None:
    inputs = "T[2, 3, 4, 5] x, T[2, 3, 4, 5] z"
    text = graph(f"a = {IN} (x)  b = {IN} (z)  c = Add(a, b)  d = Relu(c)  y = {BACK} (d)  e = {BACK} (c)  w = Neg(e)",
                 inputs, "T[2, 3, 4, 5] y, T[2, 3, 4, 5] w")
    feeds = {**X, "z": values(2, 3, 4, 5, seed=4)}
    assert sorted(rewritten(STEP, text, feeds=feeds, rtol=0)) == ["Add", "Neg", "Relu"]


def test_operands_that_broadcast() -> None:
    inputs = "T[2, 3, 4, 5] x, T[2, 3, 1, 1] z"
    text = graph(f"a = {IN} (x)  b = {IN} (z)  c = Mul(a, b)  y = {BACK} (c)", inputs)
    assert rewritten(STEP, text, feeds={**X, "z": values(2, 3, 1, 1)}, rtol=0) == ["Mul"]


def test_an_entry_that_others_read_stays() -> None:
    text = graph(f"a = {IN} (x)  b = Relu(a)  y = {BACK} (b)  z = Exp(a)", out="T[2, 3, 4, 5] y, T[2, 4, 5, 3] z")
    assert sorted(rewritten(STEP, text, feeds=X, rtol=0)) == ["Exp", "Relu", "Transpose"]


def test_symbolic_sizes() -> None:
    text = graph(f"a = {IN} (x)  b = Add(a, c)  y = {BACK} (b)", "T[n, 3, h, w] x", "T[n, 3, h, w] y")
    assert rewritten(STEP, text, feeds=X, rtol=0, c=C["c"]) == ["Add"]


def test_clip_keeps_its_limits() -> None:
    text = graph(f"a = {IN} (x)  b = Clip(a, lo, hi)  y = {BACK} (b)")
    assert rewritten(STEP, text, feeds=X, rtol=0, lo=np.array(-1.0), hi=np.array(1.0)) == ["Clip"]


@pytest.mark.parametrize("body", [
    f"a = {IN} (x)  b = Relu(a)  y = {IN} (b)",  # not the inverse
    f"a = {IN} (x)  b = Softmax(a)  y = {BACK} (b)",  # not element-wise
    f"a = {IN} (x)  b = Add(a, z)  y = {BACK} (b)",  # an operand that is not transposed
    f"b = Relu(x)  y = {BACK} (b)",  # no entry
    f"a = {IN} (x)  n = Neg(s)  b = Add(a, n)  y = {BACK} (b)",  # a smaller rank
    f"a = Add(s, c)  b = Relu(a)  r = Reshape(b, t)  y = {BACK} (r)",  # constants only
])
def test_kept(body: str) -> None:
    kept(STEP, graph(body, "T[2, 3, 4, 5] x, T[2, 4, 5, 3] z", "T[j, k, l, m] y"), **C, t=np.array([1, 1, 1, 3]))


def test_other_readers_in_between_are_kept() -> None:
    text = f"a = {IN} (x)  b = Relu(a)  y = {BACK} (b)"
    kept(STEP, graph(f"{text}  z = Exp(b)", out="T[2, 3, 4, 5] y, T[2, 4, 5, 3] z"))
    kept(STEP, graph(text, out="T[2, 3, 4, 5] y, T[2, 4, 5, 3] b"))


def test_constants_of_a_larger_rank_are_kept() -> None:
    kept(STEP, graph(f"a = {IN} (x)  b = Add(a, q)  r = Squeeze(b, k)  y = {BACK} (r)"), q=values(1, 1, 1, 1, 1),
         k=np.array([0]))
