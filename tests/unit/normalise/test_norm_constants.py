"""Constant nodes become initializers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from norm_check import SPECIAL, loaded, ops, run

from tilegraph.rewrites.normalise import (
    LiftConstants,
)

X = {"x": SPECIAL}


def test_constants_of_each_kind_become_initializers() -> None:
    model = loaded("""g (float[8] x) => (float[8] y) {
        a = Constant <value_float = 2.0> ()  b = Constant <value_floats = [2.0]> ()  c = Constant <value_int = 3> ()
        d = Constant <value_ints = [3]> ()  e = Constant <value = float[1] {4.0}> ()
        p = Add(x, a)  q = Add(p, b)  r = Add(q, e)  f = Cast <to = 1> (c)  h = Cast <to = 1> (d)
        s = Add(r, f)  y = Add(s, h) }""")
    run(LiftConstants(), model, modified=True, feeds=X)
    assert "Constant" not in ops(model)
    found = {n: (v.dtype, str(v.shape)) for n, v in model.graph.initializers.items()}
    assert found == {"a": (ir.DataType.FLOAT, "[]"), "b": (ir.DataType.FLOAT, "[1]"), "c": (ir.DataType.INT64, "[]"),
                     "d": (ir.DataType.INT64, "[1]"), "e": (ir.DataType.FLOAT, "[1]")}


def test_strings_are_lifted() -> None:
    model = loaded("""g (string[1] x) => (bool[1] y) {
        a = Constant <value_string = "ab"> ()  y = my.ops.Same(x, a) }""")
    run(LiftConstants(), model, modified=True)
    tensor = model.graph.initializers["a"].const_value
    assert tensor is not None
    assert tensor.numpy().item() == b"ab"


def test_constants_in_subgraphs_are_lifted_there() -> None:
    model = loaded("""g (float[8] x, bool c) => (float[8] y) {
        y = If (c) <then_branch = t () => (float[8] r) { k = Constant <value_float = 2.0> ()  r = Mul(x, k) },
                    else_branch = e () => (float[8] s) { s = Neg(x) }> }""")
    run(LiftConstants(), model, modified=True, feeds={**X, "c": np.array(True)})
    assert ops(model) == ["If", "Mul", "Neg"]
    assert not model.graph.initializers


def test_a_constant_that_is_an_output_stays() -> None:
    model = loaded("g (float[8] x) => (float y, float[8] z) { y = Constant <value_float = 2.0> ()  z = Neg(x) }")
    run(LiftConstants(), model, modified=False)
