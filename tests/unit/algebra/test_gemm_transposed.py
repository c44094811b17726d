"""Transposes that Gemm reads as they lie, and near misses."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from algebra_check import applied, kept, prepared, rewritten, values

from tilegraph.rewrites.algebra import GemmTransposed

STEP = GemmTransposed()
FEEDS = {"x": values(4, 5), "w": values(3, 5), "b": values(3)}
HEAD = "g (T[n, 5] x, T[3, 5] w, T[3] b) => (T[n, 3] y)"


@pytest.mark.parametrize(("body", "left"), [
    ("t = Transpose(w)  y = Gemm(x, t, b)", ["Gemm"]),
    ("t = Transpose <perm = [1, 0]> (w)  z = Gemm <alpha = 0.5, beta = 2.0> (x, t, b)  s = Sigmoid(z)  y = Mul(z, s)",
     ["Gemm", "Sigmoid", "Mul"]),
    ("u = Transpose(x)  z = Gemm <transA = 1, transB = 1> (u, w)  y = Relu(z)", ["Gemm", "Relu"]),
    ("t = Transpose(w)  r = Exp(t)  k = ReduceSum(r)  z = Gemm(x, t, b)  y = Add(z, k)",
     ["Transpose", "Exp", "ReduceSum", "Gemm", "Add"]),  # it stays for others
])
def test_read_in_place(body: str, left: list[str]) -> None:
    assert rewritten(STEP, f"{HEAD} {{ {body} }}", feeds=FEEDS) == left


def test_a_flag_that_is_set_is_taken_back() -> None:
    model = prepared("g (T[n, 5] x, T[5, 3] w) => (T[n, 3] y) { t = Transpose(w)  y = Gemm <transB = 1> (x, t) }")
    (gemm,) = applied(STEP, model, modified=True).graph
    assert isinstance(gemm, ir.Node)
    assert gemm.attributes["transB"].as_int() == 0


def test_refused() -> None:
    kept(STEP, f"{HEAD} {{ t = Transpose <perm = [0, 1]> (w)  u = Transpose(t)  v = Relu(u)  y = Gemm(x, v, b) }}")
    kept(STEP, f"{HEAD} {{ t = Transpose(w)  z = MatMul(x, t)  y = Add(z, b) }}")
    kept(STEP, "g (T[n, 5] x) => (T[n, 3] y) { t = Transpose(c)  y = Gemm(x, t) }", c=values(3, 5))
    kept(STEP, "g (T[5, n] x) => (T[n, 3] y) { t = Transpose(x)  y = Gemm(t, c) }", c=values(5, 3))
