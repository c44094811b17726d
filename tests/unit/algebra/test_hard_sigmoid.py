"""Hard sigmoids spelled out: operand orders, spellings of the constants, and near misses."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from algebra_check import applied, kept, prepared, values
from algebra_check import rewritten as rewritten_as

from tilegraph.rewrites.algebra import HardSigmoid

STEP = HardSigmoid()
X = {"x": values(4, 9, low=-8, high=8)}
C = {"three": np.array([3.0]), "six": np.array(6.0), "zero": np.array(0.0), "sixth": np.array(1 / 6),
     "fifth": np.array(0.2), "half": np.array(0.5), "one": np.array(1.0)}
CLIP = "b = Clip(a, zero, six)"
ADDS = ["a = Add(x, three)", "a = Add(three, x)"]
# 1/6 in float32 is not 1/6 in float64: alpha is exact, so answers differ by the rounding of the constant.
LOOSE = 1e-6
rewritten = partial(rewritten_as, kinds=("float",))


def graph(body: str, out: str = "T[4, 9] y") -> str:
    return f"g (T[4, 9] x) => ({out}) {{ {body} }}"


@pytest.mark.parametrize(("add", "rest"), list(itertools.product(
    ADDS, ["y = Div(b, six)", "y = Mul(b, sixth)", "y = Mul(sixth, b)"])))
def test_hard_sigmoid(add: str, rest: str) -> None:
    assert rewritten(STEP, graph(f"{add} {CLIP} {rest}"), feeds=X, rtol=LOOSE, **C) == ["HardSigmoid"]


@pytest.mark.parametrize(("add", "rest"), list(itertools.product(ADDS, [
    "c = Mul(x, b) y = Div(c, six)", "c = Mul(b, x) y = Div(c, six)", "c = Mul(x, b) y = Mul(c, sixth)",
    "c = Mul(b, x) y = Mul(sixth, c)", "c = Div(b, six) y = Mul(x, c)", "c = Mul(b, sixth) y = Mul(c, x)",
    "c = Div(x, six) y = Mul(c, b)", "c = Mul(sixth, x) y = Mul(b, c)",
])))
def test_hard_swish(add: str, rest: str) -> None:
    assert rewritten(STEP, graph(f"{add} {CLIP} {rest}"), feeds=X, rtol=LOOSE, **C) == ["HardSigmoid", "Mul"]


def test_limits_as_attributes() -> None:
    text = graph("a = Add(x, three) b = Clip <min = 0.0, max = 6.0> (a) c = Mul(x, b) y = Div(c, six)")
    # onnx's reference has no double Clip of opset 6
    assert rewritten(STEP, text, feeds=X, opset=10, rtol=LOOSE, **C) == ["HardSigmoid", "Mul"]


@pytest.mark.parametrize("lead", [
    "p = Mul(x, fifth) a = Add(p, half)", "p = Mul(fifth, x) a = Add(half, p)", "p = Div(x, six) a = Sub(p, half)",
    "a = Mul(x, fifth)", "a = Sub(half, x)", "p = Add(x, three) a = Mul(p, fifth)",
])
def test_any_alpha_and_beta(lead: str) -> None:
    # Without Clip's own division, as the upper limit is 1.
    found = rewritten(STEP, graph(f"{lead} b = Clip(a, zero, one) y = Neg(b)"), feeds=X, rtol=LOOSE, **C)
    assert found == ["HardSigmoid", "Neg"]


def test_alpha_and_beta_are_exact() -> None:
    model = prepared(graph(f"a = Add(x, three) {CLIP} y = Div(b, six)"), **C)
    (node,) = applied(STEP, model, modified=True).graph
    assert node.attributes["alpha"].as_float() == pytest.approx(1 / 6, rel=1e-7)
    assert node.attributes["beta"].as_float() == pytest.approx(0.5, rel=1e-7)


def test_a_gate_for_another_value() -> None:
    text = """g (T[4, 9] x, T[4, 9] u) => (T[4, 9] y) { a = Add(x, three) b = Clip(a, zero, six)
        c = Mul(u, b) y = Div(c, six) }"""
    assert rewritten(STEP, text, feeds={**X, "u": values(4, 9, seed=5)}, rtol=LOOSE, **C) == ["HardSigmoid", "Mul"]


def test_special_values() -> None:
    special = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -3.0, 3.0, 2.5]] * 4)
    text = graph(f"a = Add(x, three) {CLIP} c = Mul(x, b) y = Div(c, six)")
    with np.errstate(invalid="ignore"):
        rewritten(STEP, text, feeds={"x": special}, rtol=LOOSE, **C)


@pytest.mark.parametrize("body", [
    "a = Add(x, three) b = Clip(a, half, six) y = Div(b, six)",  # lower limit
    "a = Add(x, three) b = Clip(a, zero) y = Div(b, six)",  # no upper limit
    "a = Add(x, three) b = Clip(a, zero, zero) y = Div(b, six)",
    f"a = Add(x, three) {CLIP} y = Div(b, three)",  # not the limit
    f"a = Add(x, three) {CLIP} y = Mul(b, fifth)",
    f"a = Add(x, three) {CLIP} y = Div(six, b)",
    f"a = Add(x, three) {CLIP} c = Mul(x, b) y = Div(c, three)",
    f"a = Add(x, three) {CLIP} y = Mul(x, b)",  # no division at all
    f"a = Add(x, three) {CLIP} c = Add(x, b) y = Div(c, six)",
    "b = Clip(x, zero, six) y = Div(b, six)",  # nothing before Clip
    f"a = Add(x, row) {CLIP} y = Div(b, six)",  # not a scalar
    f"a = Mul(x, zero) {CLIP} y = Div(b, six)",  # alpha 0
    "a = Add(x, three) s = Neg(six) n = Neg(s) b = Clip(a, zero, n) y = Div(b, six)",  # computed limit
])
def test_kept(body: str) -> None:
    kept(STEP, graph(body), row=values(9), **C)


@pytest.mark.parametrize("extra", ["a", "b", "c"])
def test_values_that_something_else_reads_are_kept(extra: str) -> None:
    body = graph(f"a = Add(x, three) {CLIP} c = Mul(x, b) y = Div(c, six)", out=f"T[4, 9] y, T[4, 9] {extra}")
    kept(STEP, body, **C)


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_other_types_are_kept(kind: str) -> None:
    """ONNX Runtime has no HardSigmoid in float64: a folder that left it there did not load."""
    kept(STEP, graph(f"a = Add(x, three) {CLIP} y = Div(b, six)"), kind=kind, **C)
