"""One-hot matrices times tables: indices inside and outside, spellings, near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import applied, kept, prepared, rewritten, values

from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra import OneHotGather

STEP = OneHotGather()
X = {"x": np.array([[0, 3, 1, 2], [-1, 4, 9, -5]]).reshape(2, 4, 1)}  # the second row is outside
A = {"n": np.arange(4), "n3": np.arange(4).reshape(1, 1, 4), "w": values(4, 5), "r": values(5), "s": np.array(2.0)}
TO = {"float": 1, "double": 11}


def equal(body: str, kind: str, index: str = "int64", out: str = "T[2, 4, 5] y") -> str:
    text = f"g ({index}[2, 4, 1] x) => ({out}) {{ {body} }}"
    return text.replace("CAST", f"Cast <to = {TO[kind]}>")


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(("body", "left"), [
    ("e = Equal(x, n)  c = CAST(e)  y = MatMul(c, w)", ["Reshape", "Clip", "Gather"]),
    ("e = Equal(n3, x)  c = CAST(e)  y = MatMul(c, w)", ["Reshape", "Clip", "Gather"]),
    ("e = Equal(x, n3)  c = CAST(e)  m = MatMul(c, w)  y = Add(m, r)", ["Reshape", "Clip", "Gather"]),
    ("e = Equal(x, n)  c = CAST(e)  m = MatMul(c, w)  y = Add(s, m)", ["Reshape", "Clip", "Gather"]),
    ("e = Equal(x, n)  c = CAST(e)  m = MatMul(c, w)  y = Mul(m, s)", ["Reshape", "Clip", "Gather", "Mul"]),
])
def test_equal(body: str, left: list[str], kind: str) -> None:
    # Exact: one row times 1 and zeros.
    assert rewritten(STEP, equal(body, kind), feeds=X, kinds=(kind,), rtol=0, **A) == left


def test_int32_and_dynamic_shapes() -> None:
    text = """g (int32[b, t, 1] x) => (T[b, t, 5] y) {
        e = Equal(x, n)  c = Cast <to = 1> (e)  y = MatMul(c, w) }"""
    feeds = {"x": X["x"].astype(np.int32)}
    arrays = {**A, "n": A["n"].astype(np.int32)}
    assert rewritten(STEP, text, feeds=feeds, kinds=("float",), rtol=0, **arrays)[-1] == "Gather"


def test_one_hot() -> None:
    # Negative indices count from the end in OneHot, and -5, 4 and 9 are outside.
    text = "g (int64[2, 4] x) => (T[2, 4, 5] y) { o = OneHot <axis = -1> (x, d, v)  y = MatMul(o, w) }"
    arrays = {"w": A["w"], "d": np.array(4), "v": np.array([0.0, 1.0])}
    feeds = {"x": np.array([[0, 3, -4, 2], [-1, 1, -2, -3]])}
    assert rewritten(STEP, text, feeds=feeds, rtol=0, **arrays) == ["Clip", "Gather"]


@pytest.mark.parametrize("index", [-5, -6, 4, 9])
def test_one_hot_outside(index: int) -> None:
    # onnx's reference wraps these; the standard says that the row is off. So the result is compared with zeros.
    from onnx.reference import ReferenceEvaluator
    from onnx_ir import to_proto

    text = "g (int64[1] x) => (T[1, 5] y) { o = OneHot <axis = -1> (x, d, v)  y = MatMul(o, w) }"
    model = prepared(text, **A, d=np.array([4]), v=np.array([0.0, 1.0]))
    applied(STEP, model, modified=True)
    (found,) = ReferenceEvaluator(to_proto(model)).run(None, {"x": np.array([index])})
    np.testing.assert_array_equal(found, np.zeros((1, 5), np.float32))


@pytest.mark.parametrize("body", [
    "e = Equal(x, q)  c = CAST(e)  y = MatMul(c, w)",  # not 0, 1, 2, 3
    "e = Less(x, n)  c = CAST(e)  y = MatMul(c, w)",
    "e = Equal(x, n)  c = CAST(e)  y = MatMul(c, i)",  # an infinity in the table
    "e = Equal(x, n)  c = CAST(e)  y = MatMul(c, k)",  # not a matrix
    "e = Equal(x, n)  c = CAST(e)  z = Neg(c)  y = MatMul(z, w)",
])
def test_kept(body: str) -> None:
    infinite = A["w"].copy()
    infinite[1, 2] = np.inf
    kept(STEP, equal(body, "float"), **A, q=np.array([0, 1, 3, 2]), i=infinite, k=values(2, 4, 5))


def test_a_one_hot_that_something_else_reads_is_kept() -> None:
    body = "e = Equal(x, n)  c = CAST(e)  y = MatMul(c, w)"
    kept(STEP, equal(body, "float", out="T[2, 4, 5] y, T[2, 4, 4] c"), **A)
    kept(STEP, equal(body, "float", out="T[2, 4, 5] y, bool[2, 4, 4] e"), **A)


def test_indices_that_broadcast_are_kept() -> None:
    text = "g (int64[2, 4, 4] x) => (T[2, 4, 5] y) { e = Equal(x, n)  c = Cast <to = 1> (e)  y = MatMul(c, w) }"
    kept(STEP, text, **A)


def test_float_indices_and_old_opsets_are_kept() -> None:
    body = "e = Equal(x, n)  c = CAST(e)  y = MatMul(c, w)"
    kept(STEP, equal(body, "float", index="float"), **{**A, "n": np.arange(4).astype(np.float32)})
    kept(STEP, equal(body, "float"), opset=11, **A)


@pytest.mark.parametrize("node", [
    "OneHot(x, four, flipped)", "OneHot(x, four, doubled)", "OneHot(x, given, plain)",
    "OneHot <axis = 0> (x, four, plain)",  # [4, 4]: only the axis tells
])
def test_other_one_hots_are_kept(node: str) -> None:
    text = f"g (int64[4] x, int64 given) => (T[4, 5] y) {{ o = {node}  y = MatMul(o, w) }}"
    kept(STEP, text, w=A["w"], four=np.array(4), plain=np.array([0.0, 1.0]), flipped=np.array([1.0, 0.0]),
         doubled=np.array([0.0, 2.0]))


def test_the_limit_on_growth() -> None:
    text = """g (int64[2, 4, 1] x, T[2, 4] z) => (T[2, 4, 5] y, T[2, 5] u) {
        e = Equal(x, n)  c = Cast <to = 1> (e)  y = MatMul(c, w)  u = MatMul(z, w) }"""
    kept(STEP, text, **A, context=PassContext(fold_limit_bytes=99))  # the table takes 100
