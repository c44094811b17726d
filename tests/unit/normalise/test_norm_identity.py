"""Nodes that give back their input: each case, and a near miss for each."""

from __future__ import annotations

import numpy as np
import pytest
from norm_check import SPECIAL, ops, prepared, run

from tilegraph.rewrites.normalise import IdentityElimination

STEP = IdentityElimination()
FEEDS = {"x": SPECIAL}


def graph(body: str, inputs: str = "float[8] x", outputs: str = "float[8] y", constants: str = "") -> str:
    return f"g ({inputs}) => ({outputs}) {constants} {{ {body} }}"


@pytest.mark.parametrize("body", [
    "a = Identity(x)  y = Neg(a)",
    "a = Cast <to = 1> (x)  y = Neg(a)",
    "a = CastLike(x, x)  y = Neg(a)",
    "n = Constant <value_ints = [8]> ()  a = Reshape(x, n)  y = Neg(a)",
    "n = Constant <value_ints = [-1]> ()  a = Reshape(x, n)  y = Neg(a)",
    "a = Transpose <perm = [0]> (x)  y = Neg(a)",
    "a = Transpose (x)  y = Neg(a)",
    "n = Constant <value_ints = [1]> ()  a = Expand(x, n)  y = Neg(a)",
    "n = Constant <value_ints = [1]> ()  a = Tile(x, n)  y = Neg(a)",
    "b = Constant <value_ints = [0]> () e = Constant <value_ints = [99]> () a = Slice(x, b, e)  y = Neg(a)",
    "n = Constant <value_ints = [0, 0]> ()  a = Pad(x, n)  y = Neg(a)",
    "a = Concat <axis = 0> (x)  y = Neg(a)",
    "a = Max(x)  y = Neg(a)",
    "a = Min(x)  y = Neg(a)",
    "a = Dropout(x)  y = Neg(a)",
    "o = Constant <value_float = 1.0> ()  a = Mul(x, o)  y = Neg(a)",
    "o = Constant <value_float = 1.0> ()  a = Mul(o, x)  y = Neg(a)",
    "o = Constant <value_float = 1.0> ()  a = Div(x, o)  y = Neg(a)",
    "o = Constant <value_float = 0.0> ()  a = Sub(x, o)  y = Neg(a)",
    "o = Constant <value_float = -0.0> ()  a = Add(x, o)  y = Neg(a)",
])
def test_removed(body: str) -> None:
    model = prepared(graph(body))
    run(STEP, model, modified=True, feeds=FEEDS)
    assert ops(model) == ["Neg"]


@pytest.mark.parametrize("body", [
    "o = Constant <value_float = 0.0> ()  y = Add(x, o)",  # -0.0 + 0.0 is 0.0
    "o = Constant <value_float = -0.0> ()  y = Sub(x, o)",  # the same
    "o = Constant <value_float = 1.0> ()  y = Div(o, x)",
    "o = Constant <value_float = 0.0> ()  y = Sub(o, x)",
    "o = Constant <value_float = 1.0000001> ()  y = Mul(x, o)",
    "b = Constant <value_ints = [-1]> () e = Constant <value_ints = [-99]> () t = Constant <value_ints = [0]> () "
    "s = Constant <value_ints = [-1]> () y = Slice(x, b, e, t, s)",  # backwards
    "a = Cast <to = 10> (x)  y = Cast <to = 1> (a)",
])
def test_kept(body: str) -> None:
    model = prepared(graph(body))
    before = ops(model)
    run(STEP, model, modified=False)
    assert ops(model) == before


def test_a_sum_of_one() -> None:
    # onnx's reference adds it to 0, which loses -0.0; ONNX Runtime copies.
    assert ops(run(STEP, prepared(graph("a = Sum(x)  y = Neg(a)")), modified=True)) == ["Neg"]


def test_a_broadcasting_operand_is_kept() -> None:
    text = graph("y = Mul(x, o)", outputs="float[3, 8] y", constants="<float[3, 1] o = {1.0, 1.0, 1.0}>")
    run(STEP, prepared(text), modified=False)


def test_pads_that_cancel_are_kept() -> None:
    text = graph("n = Constant <value_ints = [-1, 1]> ()  y = Pad(x, n)")
    run(STEP, prepared(text), modified=False)


def test_a_transpose_of_equal_axes_is_kept() -> None:
    text = graph("y = Transpose <perm = [1, 0]> (x)", "float[4, 4] x", "float[4, 4] y")
    run(STEP, prepared(text), modified=False)


@pytest.mark.parametrize(("kind", "body", "feed"), [
    ("int64", "o = Constant <value_int = 0> ()  a = Add(o, x)  y = Neg(a)", np.array([1, -2], np.int64)),
    ("int64", "o = Constant <value_int = 1> ()  a = Div(x, o)  y = Neg(a)", np.array([1, -2], np.int64)),
    ("bool", "o = Constant <value = bool {1}> ()  a = And(x, o)  y = Not(a)", np.array([True, False])),
    ("bool", "o = Constant <value = bool {0}> ()  a = Or(o, x)  y = Not(a)", np.array([True, False])),
    ("bool", "o = Constant <value = bool {0}> ()  a = Xor(x, o)  y = Not(a)", np.array([True, False])),
])
def test_integers_and_booleans(kind: str, body: str, feed: np.ndarray) -> None:
    model = run(STEP, prepared(graph(body, f"{kind}[2] x", f"{kind}[2] y")), modified=True, feeds={"x": feed})
    assert len(ops(model)) == 1


def test_symbolic_shapes_that_are_equal() -> None:
    text = """g (float[n, 4, 6] x) => (float[n, 4, 6] y) {
        s = Shape(x)  a = Reshape(x, s)  b = Relu(a)
        z = Constant <value_ints = [0]> ()  p = Gather(s, z)  t = Constant <value_ints = [4, 6]> ()
        q = Concat <axis = 0> (p, t)  c = Expand(b, q)  y = Neg(c) }"""
    model = run(STEP, prepared(text), modified=True, feeds={"x": np.ones((2, 4, 6), np.float32)})
    assert "Reshape" not in ops(model)
    assert "Expand" not in ops(model)


def test_symbolic_shapes_that_may_differ() -> None:
    text = """g (float[n, m] x) => (float[p, q] y) { s = Shape(x)  r = Constant <value_ints = [1, 0]> ()
        t = Gather(s, r)  y = Reshape(x, t) }"""
    run(STEP, prepared(text), modified=False)


# -- graph outputs ----------------------------------------------------------------------------------------
def test_the_producer_takes_over_the_output_name() -> None:
    model = run(STEP, prepared(graph("a = Neg(x)  y = Identity(a)  ")), modified=True, feeds=FEEDS)
    assert ops(model) == ["Neg"]


def test_an_identity_from_input_or_initializer_to_output_stays() -> None:
    text = graph("y = Identity(x)  z = Identity(w)", outputs="float[8] y, float[1] z", constants="<float[1] w = {2.0}>")
    run(STEP, prepared(text), modified=False)


def test_other_no_ops_to_an_output_become_an_identity() -> None:
    model = run(STEP, prepared(graph("y = Cast <to = 1> (x)")), modified=True, feeds=FEEDS)
    assert ops(model) == ["Identity"]


def test_one_value_as_two_outputs() -> None:
    outputs = "float[8] y, float[8] z, float[8] b"
    text = graph("a = Neg(x)  y = Identity(a)  z = Identity(a)  b = Abs(a)", outputs=outputs)
    model = run(STEP, prepared(text), modified=True, feeds=FEEDS)
    assert sorted(ops(model)) == ["Abs", "Identity", "Neg"]


def test_captures_and_outputs_of_subgraphs() -> None:
    text = """g (float[8] x, bool c) => (float[8] y) {
        a = Identity(x)
        y = If (c) <then_branch = t () => (float[8] r) { r = Identity(a) },
                    else_branch = e () => (float[8] s) { b = Neg(a)  s = Identity(b) }>
    }"""
    model = run(STEP, prepared(text), modified=True, feeds={"x": SPECIAL, "c": np.array(True)})
    # A branch may not give back a value from outside, so the first one keeps its Identity.
    assert ops(model) == ["If", "Identity", "Neg"]


def test_dropout_with_a_used_mask_or_in_training_stays() -> None:
    run(STEP, prepared(graph("y, m = Dropout(x)", outputs="float[8] y, bool[8] m")), modified=False)
    training = graph("t = Constant <value = bool {1}> ()  r = Constant <value_float = 0.5> ()  y = Dropout(x, r, t)")
    run(STEP, prepared(training), modified=False)
    unknown = graph("r = Constant <value_float = 0.5> ()  y = Dropout(x, r, t)", "float[8] x, bool t")
    run(STEP, prepared(unknown), modified=False)
