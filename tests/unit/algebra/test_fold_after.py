"""Scales and shifts after a linear node: each case, and a near miss for each refusal."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from algebra_check import applied, kept, ops, prepared, rewritten, values

from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra import FoldAfter

STEP = FoldAfter()
X = {"x": values(2, 3, 6, 5, seed=1)}
W = {"w": values(4, 3, 3, 3, seed=2)}
B = {"b": values(4, seed=3)}
S = {"s": np.array(1.7), "t": np.array(-0.3), "c": values(4, 1, 1, seed=4), "d": values(1, 4, 1, 1, seed=5)}
NORM = {n: values(4, seed=k, low=0.2, high=2) for k, n in enumerate("ghmv")}


def conv(rest: str, *, bias: bool = False, out: str = "T[2, 4, 6, 5] y") -> str:
    inputs = "x, w, b" if bias else "x, w"
    return f"g (T[2, 3, 6, 5] x) => ({out}) {{ a = Conv <pads = [1, 1, 1, 1]> ({inputs})  {rest} }}"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rest", [
    "y = Mul(a, s)", "y = Mul(s, a)", "y = Add(a, s)", "y = Add(c, a)", "y = Sub(a, s)", "y = Sub(s, a)",
    "y = Div(a, s)", "y = Div(a, c)", "y = Mul(a, d)",
    "p = Mul(a, s)  q = Add(p, c)  r = Sub(t, q)  y = Div(r, d)",
    "y = BatchNormalization <epsilon = 0.01> (a, g, h, m, v)",
    "p = Add(a, c)  q = BatchNormalization(p, g, h, m, v)  y = Mul(q, s)",
])
def test_conv(rest: str, bias: bool) -> None:
    assert rewritten(STEP, conv(rest, bias=bias), feeds=X, **W, **B, **S, **NORM) == ["Conv"]


def test_a_channel_number_of_one() -> None:
    text = "g (T[2, 3, 6, 5] x) => (T[2, 1, 6, 5] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Mul(a, s) }"
    assert rewritten(STEP, text, feeds=X, w=values(1, 3, 3, 3), s=values(1, 1, 1)) == ["Conv"]


def test_groups_and_one_dimension() -> None:
    text = "g (T[2, 4, 9] x) => (T[2, 6, 7] y) { a = Conv <group = 2> (x, w)  y = Mul(a, c) }"
    assert rewritten(STEP, text, feeds={"x": values(2, 4, 9)}, w=values(6, 2, 3), c=values(6, 1)) == ["Conv"]


def test_symbolic_batch_and_sizes() -> None:
    text = "g (T[n, 3, h, k] x) => (T[n, 4, h, k] y) { a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Mul(a, c) }"
    assert rewritten(STEP, text, feeds=X, **W, c=S["c"]) == ["Conv"]


def test_conv_transpose() -> None:
    text = """g (T[2, 3, 6, 5] x) => (T[2, 4, 7, 6] y) {
        a = ConvTranspose (x, w, b)  p = Mul(a, c)  y = Add(p, d) }"""
    assert rewritten(STEP, text, feeds=X, w=values(3, 4, 2, 2), **B, **S) == ["ConvTranspose"]


@pytest.mark.parametrize("attributes", ["", "<transB = 1, alpha = 0.5, beta = 3.0>"])
@pytest.mark.parametrize("third", ["", ", c"])
@pytest.mark.parametrize("rest", ["y = Mul(a, s)", "p = Mul(a, e)  y = Add(p, f)", "y = Sub(s, a)"])
def test_gemm(attributes: str, third: str, rest: str) -> None:
    text = f"g (T[3, 5] x) => (T[3, 4] y) {{ a = Gemm {attributes} (x, w{third})  {rest} }}"
    w = values(4, 5) if attributes else values(5, 4)
    arrays = {"c": values(1, 4), "s": np.array([2.5]), "e": values(4), "f": values(1, 4, seed=9)}
    assert rewritten(STEP, text, feeds={"x": values(3, 5)}, w=w, **arrays) == ["Gemm"]


@pytest.mark.parametrize(("rest", "left"), [
    ("y = Mul(a, s)", ["MatMul"]), ("y = Div(a, e)", ["MatMul"]),
    ("p = Add(a, e)  y = Mul(p, s)", ["MatMul", "Add"]),
    ("p = Mul(a, s)  q = Add(p, e)  y = Sub(s, q)", ["MatMul", "Add"]),
])
def test_matmul(rest: str, left: list[str]) -> None:
    text = f"g (T[2, 3, 5] x) => (T[2, 3, 4] y) {{ a = MatMul(x, w)  {rest} }}"
    arrays = {"s": np.array(0.37), "e": values(4)}
    assert rewritten(STEP, text, feeds={"x": values(2, 3, 5)}, w=values(5, 4), **arrays) == left


def test_what_follows_a_fold_stays() -> None:
    text = conv("p = Mul(a, s)  q = Relu(p)  y = Add(q, s)")
    assert rewritten(STEP, text, feeds=X, **W, **S) == ["Conv", "Relu", "Add"]


def test_a_reader_in_between_ends_the_chain() -> None:
    text = conv("p = Mul(a, s)  q = Add(p, t)  z = Neg(p)  y = Add(q, z)")
    assert rewritten(STEP, text, feeds=X, **W, **S) == ["Conv", "Add", "Neg", "Add"]


def test_an_output_in_between_ends_the_chain() -> None:
    text = conv("p = Mul(a, s)  y = Add(p, t)", out="T[2, 4, 6, 5] y, T[2, 4, 6, 5] p")
    assert rewritten(STEP, text, feeds=X, **W, **S) == ["Conv", "Add"]


def test_as_much_of_a_chain_as_is_possible() -> None:
    text = conv("p = Mul(a, s)  y = Mul(p, r)")
    assert rewritten(STEP, text, feeds=X, **W, **S, r=values(5)) == ["Conv", "Mul"]


def test_inside_a_branch() -> None:
    text = """g (T[2, 3, 6, 5] x, bool k) => (T[2, 4, 4, 3] y) {
        y = If (k) <then_branch = t () => (T[2, 4, 4, 3] r) { a = Conv(x, w)  r = Mul(a, s) },
                    else_branch = e () => (T[2, 4, 4, 3] q) { q = Conv(x, w) }> }"""
    feeds = {**X, "k": np.array(True)}
    assert rewritten(STEP, text, feeds=feeds, **W, s=S["s"]) == ["If", "Conv", "Conv"]


# -- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rest", [
    "y = Mul(a, r)",  # along the width
    "y = Mul(a, q)",  # a whole image
    "y = Div(s, a)",
    "y = Div(a, o)",  # by zero
    "y = Mul(a, a)",
    "y = Max(a, s)",
    "p, m2, v2, m3, v3 = BatchNormalization(a, g, h, m, v)  y = Add(p, p)",
    "z = Neg(a)  y = Mul(a, z)",
])
def test_kept(rest: str) -> None:
    opset = 8 if "m3" in rest else 17
    kept(STEP, conv(rest), **W, **S, **NORM, r=values(5), q=values(6, 5), o=np.array(0.0), opset=opset)


def test_constants_that_enlarge_the_value_are_kept() -> None:
    text = "g (T[1, 3, 6, 5] x) => (T[2, 4, 4, 3] y) { a = Conv(x, w)  y = Mul(a, e) }"
    kept(STEP, text, **W, e=values(2, 1, 1, 1))
    more = "g (T[1, 3, 6, 5] x) => (T[1, 1, 4, 4, 3] y) { a = Conv(x, w)  y = Mul(a, e) }"
    kept(STEP, more, **W, e=values(1, 1, 1, 1, 1))
    one = "g (T[1, 3, 6, 5] x) => (T[1, 4, 4, 3] y) { a = Conv(x, w)  y = Mul(a, e) }"
    kept(STEP, one, w=values(1, 3, 3, 3), e=values(4, 1, 1))


def test_weights_that_are_not_constant_are_kept() -> None:
    kept(STEP, "g (T[2, 3, 6, 5] x, T[4, 3, 3, 3] w) => (T[2, 4, 4, 3] y) { a = Conv(x, w)  y = Mul(a, s) }", s=S["s"])
    kept(STEP, "g (T[2, 3, 6, 5] x, T[4] b) => (T[2, 4, 4, 3] y) { a = Conv(x, w, b)  y = Mul(a, s) }", **W, s=S["s"])


def test_weights_that_a_caller_may_override_are_kept() -> None:
    text = "g (T[2, 3, 6, 5] x, T[4, 3, 3, 3] w) => (T[2, 4, 4, 3] y) { a = Conv(x, w)  y = Mul(a, s) }"
    kept(STEP, text, **W, s=S["s"])


def test_half_types_are_kept() -> None:
    text = "g (T[2, 3] x) => (T[2, 4] y) { a = MatMul(x, w)  y = Mul(a, s) }"
    kept(STEP, text, kind="float16", w=values(3, 4), s=np.array(2.0))
    applied(STEP, prepared(text, w=values(3, 4), s=np.array(2.0)), modified=True)


def test_results_that_overflow_are_kept() -> None:
    kept(STEP, conv("y = Mul(a, s)"), w=np.full((4, 3, 3, 3), 1e30), s=np.array(1e10))
    prepared_ok = prepared(conv("y = Mul(a, s)"), w=np.full((4, 3, 3, 3), 1e20), s=np.array(1e10))
    applied(STEP, prepared_ok, modified=True)


def test_a_lone_shift_after_matmul_is_kept() -> None:
    text = "g (T[2, 5] x) => (T[2, 4] y) { a = MatMul(x, w)  y = Add(a, e) }"
    kept(STEP, text, w=values(5, 4), e=values(4))


def test_matmul_of_stacked_matrices_is_kept() -> None:
    kept(STEP, "g (T[2, 3, 5] x) => (T[2, 3, 4] y) { a = MatMul(x, w)  y = Mul(a, e) }", w=values(2, 5, 4),
         e=np.array(2.0))


def test_a_full_c_of_gemm_is_kept() -> None:
    kept(STEP, "g (T[3, 5] x) => (T[3, 4] y) { a = Gemm(x, w, c)  y = Mul(a, e) }", w=values(5, 4), c=values(3, 4),
         e=np.array(2.0))


def test_shared_weights_are_copied_within_the_limit_only() -> None:
    text = """g (T[2, 3, 6, 5] x) => (T[2, 4, 4, 3] y, T[2, 4, 4, 3] z) {
        a = Conv(x, w)  y = Mul(a, s)  z = Conv(x, w) }"""
    kept(STEP, text, **W, s=S["s"], context=PassContext(fold_limit_bytes=431))  # the weights take 432
    model = prepared(text, **W, s=S["s"])
    applied(STEP, model, modified=True, context=PassContext(fold_limit_bytes=600))
    assert ops(model) == ["Conv", "Conv"]
    first, second = model.graph
    assert first.inputs[1] is not second.inputs[1]


def test_the_refusal_names_node_and_reason() -> None:
    context = PassContext()
    model = prepared(conv("y = Mul(a, r)"), **W, r=values(5))
    STEP.run(model, context)
    (decision,) = context.diagnostics.of(STEP.name)
    assert not decision.taken
    assert decision.op == "Conv"
    assert "output channel" in decision.reason


def test_gemm_without_c_gets_one() -> None:
    model = prepared("g (T[3, 5] x) => (T[3, 4] y) { a = Gemm <beta = 0.0> (x, w)  y = Add(a, e) }", w=values(5, 4),
                     e=values(4))
    applied(STEP, model, modified=True)
    (node,) = model.graph
    assert isinstance(node.attributes["beta"], ir.Attr)
    assert node.attributes["beta"].as_float() == 1.0
    assert len(node.inputs) == 3


PHASE = "g (T[5, 3] x) => (T[5, 4] y, T[5, 4] z) { a = MatMul(x, w)  p = Mul(a, s)  y = FIRST(p)  z = SECOND(p) }"


def test_phases_of_sines_are_kept() -> None:
    """Random Fourier features: folded into the weights, 2 pi made the answers of a model off by twice as much."""
    arrays = {"w": values(3, 4), "s": np.array(2 * np.pi)}
    kept(STEP, PHASE.replace("FIRST", "Sin").replace("SECOND", "Tanh"), **arrays)
    kept(STEP, PHASE.replace("FIRST", "Tanh").replace("SECOND", "Cos"), **arrays)
    text = PHASE.replace("FIRST", "Tanh").replace("SECOND", "Sigmoid")
    assert rewritten(STEP, text, feeds={"x": values(5, 3)}, **arrays) == ["MatMul", "Tanh", "Sigmoid"]
