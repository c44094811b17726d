"""Scales and shifts before a linear node: each case, and a near miss for each refusal."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import applied, kept, ops, prepared, rewritten, values

from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra import FoldBefore

STEP = FoldBefore()
X = {"x": values(2, 3, 6, 5, seed=1)}
W = {"w": values(4, 3, 3, 3, seed=2), "b": values(4, seed=3)}
S = {"s": np.array([1.7]), "t": np.array(-0.3), "c": values(3, 1, 1, seed=4), "d": values(1, 3, 1, 1, seed=5)}
NORM = {n: values(3, seed=k, low=0.2, high=2) for k, n in enumerate("ghmv")}


def conv(lead: str, attributes: str = "", third: str = ", b", out: str = "T[2, 4, 4, 3] y") -> str:
    return f"g (T[2, 3, 6, 5] x) => ({out}) {{ {lead}  y = Conv {attributes} (a, w{third}) }}"


@pytest.mark.parametrize("third", ["", ", b"])
@pytest.mark.parametrize("lead", [
    "a = Mul(x, s)", "a = Add(c, x)", "a = Sub(t, x)", "a = Div(x, d)",
    "p = Mul(x, c)  q = Add(p, s)  a = Sub(q, d)",
    "a = BatchNormalization(x, g, h, m, v)", "p = BatchNormalization(x, g, h, m, v)  a = Mul(p, s)",
])
def test_conv_without_padding(lead: str, third: str) -> None:
    for attributes in ("", "<auto_pad = \"VALID\">", "<pads = [0, 0, 0, 0]>"):
        assert rewritten(STEP, conv(lead, attributes, third), feeds=X, **W, **S, **NORM) == ["Conv"]


@pytest.mark.parametrize("attributes", ["<pads = [1, 1, 1, 1]>", "<pads = [0, 2, 2, 0]>",
                                        "<auto_pad = \"SAME_UPPER\">"])
def test_conv_with_zero_padding(attributes: str) -> None:
    out = "T[2, 4, 6, 5] y"
    assert rewritten(STEP, conv("a = Mul(x, c)", attributes, out=out), feeds=X, **W, **S) == ["Conv"]
    text = conv("p = Mul(x, c)  a = Add(p, s)", attributes, out=out)
    assert rewritten(STEP, text, feeds=X, **W, **S) == ["Add", "Conv"]


def test_strides_dilations_and_groups() -> None:
    text = """g (T[2, 4, 9, 9] x) => (T[2, 6, 3, 3] y) { p = Mul(x, c)  a = Add(p, d)
        y = Conv <group = 2, strides = [2, 2], dilations = [2, 2]> (a, w, b) }"""
    arrays = {"c": values(4, 1, 1), "d": values(4, 1, 1, seed=7), "w": values(6, 2, 3, 3), "b": values(6)}
    assert rewritten(STEP, text, feeds={"x": values(2, 4, 9, 9)}, **arrays) == ["Conv"]


def test_depthwise_with_symbolic_sizes() -> None:
    text = """g (T[n, 3, h, k] x) => (T[n, 3, h, k] y) { p = Mul(x, s)  a = Add(p, t)
        y = Conv <group = 3, pads = [1, 1, 1, 1]> (a, w) }"""
    assert rewritten(STEP, text, feeds=X, w=values(3, 1, 3, 3), s=S["s"], t=S["t"]) == ["Add", "Conv"]


def test_conv_transpose_scale() -> None:
    text = "g (T[2, 3, 6, 5] x) => (T[2, 4, 7, 6] y) { a = Mul(x, c)  y = ConvTranspose(a, w) }"
    assert rewritten(STEP, text, feeds=X, w=values(3, 4, 2, 2), c=S["c"]) == ["ConvTranspose"]


@pytest.mark.parametrize("node", ["MatMul(a, w)", "Gemm(a, w)", "Gemm <transB = 1> (a, v)"])
def test_matrices_take_a_scalar(node: str) -> None:
    text = f"g (T[3, 5] x) => (T[3, 4] y) {{ a = Div(x, s)  y = {node} }}"
    assert len(rewritten(STEP, text, feeds={"x": values(3, 5)}, w=values(5, 4), v=values(4, 5), s=np.array(3.0))) == 1


def test_only_the_end_of_a_chain() -> None:
    text = conv("p = Mul(x, r)  a = Mul(p, c)")
    assert rewritten(STEP, text, feeds=X, **W, **S, r=values(5)) == ["Mul", "Conv"]


def test_the_start_of_a_chain_that_others_read_stays() -> None:
    text = conv("p = Mul(x, s)  q = Add(p, t)  a = Mul(q, c)", out="T[2, 4, 4, 3] y, T[2, 3, 6, 5] p")
    assert rewritten(STEP, text, feeds=X, **W, **S) == ["Mul", "Conv"]


# -- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("lead", "attributes"), [
    ("a = Mul(x, r)", ""),  # along the width
    ("a = Add(x, s)", "<pads = [0, 0, 0, 1]>"),
    ("a = BatchNormalization(x, g, h, m, v)", "<pads = [1, 1, 1, 1]>"),
    ("a = Div(s, x)", ""),
    ("a = Mul(x, x)", ""),
    ("a = Relu(x)", ""),
])
def test_kept(lead: str, attributes: str) -> None:
    out = "T[2, 4, h, k] y" if attributes else "T[2, 4, 4, 3] y"
    kept(STEP, conv(lead, attributes, out=out), **W, **S, **NORM, r=values(5))


def test_a_value_that_something_else_reads_is_kept() -> None:
    kept(STEP, conv("a = Mul(x, s)", out="T[2, 4, 4, 3] y, T[2, 3, 6, 5] a"), **W, **S)
    kept(STEP, conv("a = Mul(x, s)  z = Neg(a)", out="T[2, 4, 4, 3] y, T[2, 3, 6, 5] z"), **W, **S)
    twice = "g (T[2, 3, 6, 5] x) => (T[2, 4, 4, 3] y, T[2, 4, 4, 3] z) {a = Mul(x, s) y = Conv(a, w) z = Conv(a, w) }"
    kept(STEP, twice, **W, **S)


def test_a_shift_over_a_scale_of_zero_is_kept() -> None:
    text = conv("p = Mul(x, z)  a = Add(p, s)", "<pads = [1, 1, 1, 1]>", out="T[2, 4, 6, 5] y")
    kept(STEP, text, **W, **S, z=np.array([1.0, 0.0, 2.0]).reshape(3, 1, 1))


def test_a_shift_over_a_tiny_scale_is_kept() -> None:
    text = conv("p = Mul(x, z)  a = Add(p, s)", "<pads = [1, 1, 1, 1]>", out="T[2, 4, 6, 5] y")
    kept(STEP, text, **W, **S, z=np.array(1e-39))


@pytest.mark.parametrize("node", ["MatMul(a, w)", "Gemm(a, w)"])
@pytest.mark.parametrize("lead", ["a = Mul(x, e)", "a = Add(x, s)"])
def test_matrices_keep_channels_and_shifts(node: str, lead: str) -> None:
    text = f"g (T[3, 5] x) => (T[3, 4] y) {{ {lead}  y = {node} }}"
    kept(STEP, text, w=values(5, 4), e=values(5), s=np.array(3.0))


def test_a_shift_before_conv_transpose_is_kept() -> None:
    text = "g (T[2, 3, 6, 5] x) => (T[2, 4, 7, 6] y) { a = Add(x, c)  y = ConvTranspose(a, w) }"
    kept(STEP, text, w=values(3, 4, 2, 2), c=S["c"])


@pytest.mark.parametrize("curve", ["Erf", "Tanh"])
def test_the_end_of_a_gelu_is_kept(curve: str) -> None:
    text = f"""g (T[3, 5] x) => (T[3, 4] y) {{ p = Div(x, r)  q = {curve}(p)  o = Add(q, one)  m = Mul(x, o)
        a = Mul(m, half)  y = MatMul(a, w) }}"""
    arrays = {"r": np.array(1.414), "one": np.array(1.0), "half": np.array(0.5), "w": values(5, 4)}
    kept(STEP, text, **arrays)
    other = text.replace(f"{curve}(p)", "Neg(p)")
    assert rewritten(STEP, other, feeds={"x": values(3, 5)}, **arrays)[-2:] == ["Mul", "MatMul"]


def test_a_transposed_gemm_operand_is_kept() -> None:
    text = "g (T[5, 3] x) => (T[3, 4] y) { a = Mul(x, s)  y = Gemm <transA = 1> (a, w) }"
    kept(STEP, text, w=values(5, 4), s=np.array(3.0))


def test_a_bias_that_is_not_constant_is_kept() -> None:
    text = "g (T[2, 3, 6, 5] x, T[4] b) => (T[2, 4, 4, 3] y) { a = Add(x, s)  y = Conv(a, w, b) }"
    kept(STEP, text, w=W["w"], s=S["s"])


def test_results_that_overflow_are_kept() -> None:
    kept(STEP, conv("a = Mul(x, s)", third=""), w=np.full((4, 3, 3, 3), 1e30), s=np.array(1e10))


def test_shared_weights_are_copied_within_the_limit_only() -> None:
    text = """g (T[2, 3, 6, 5] x) => (T[2, 4, 4, 3] y, T[2, 4, 4, 3] z) {
        a = Mul(x, s)  y = Conv(a, w)  z = Conv(x, w) }"""
    kept(STEP, text, w=W["w"], s=S["s"], context=PassContext(fold_limit_bytes=431))
    model = applied(STEP, prepared(text, w=W["w"], s=S["s"]), modified=True)
    assert ops(model) == ["Conv", "Conv"]
