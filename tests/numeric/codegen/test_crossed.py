"""Transposed operands, read in squares and turned in registers: every dtype, every rest, alone and computed with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.numeric.codegen.runner import compile_lowered, lower
from tests.unit.fusion.parse import model
from tilegraph.codegen.isa import Isa, host
from tilegraph.codegen.rows.crossed import lanes_of
from tilegraph.ops.region import plan

Array = np.ndarray[Any, Any]
ISAS = list(dict.fromkeys([Isa(host().base), Isa("x86-64-v3")]))
DTYPES = ["float", "double", "float16", "bfloat16", "int64", "int32", "int8", "uint16", "bool"]


def run(text: str, feeds: dict[str, Array], *, turned: bool = True, isa: Isa = ISAS[0], tasks: int = 3) -> Array:
    made = model(text, 17)
    lowered = lower(list(made.graph), list(made.graph.outputs), 17)
    narrow = isa.vector_bits == 128 and feeds["x"].itemsize == 8  # squares of two are not worth turning
    assert (lanes_of(plan(lowered), isa.vector_bits) > 0) is (turned and not narrow)
    kernel = compile_lowered(lowered, isa)
    kernel.check_fences(feeds, tasks)
    return kernel.run(feeds, tasks)[0]


@pytest.mark.parametrize("isa", ISAS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "w"), [(16, 16), (37, 53), (5, 4), (64, 7)])
def test_a_transpose_alone(h: int, w: int, dtype: str, isa: Isa) -> None:
    name = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(name)
    x = (np.arange(3 * h * w) % 251).reshape(3, h, w).astype(kind)
    text = f"({dtype}[3,{h},{w}] x) => ({dtype}[3,{w},{h}] y) {{ y = Transpose<perm=[0,2,1]>(x) }}"
    ours = run(text, {"x": x}, isa=isa)
    assert np.array_equal(ours, x.transpose(0, 2, 1))


@pytest.mark.parametrize(("h", "w"), [(1, 1), (3, 40), (16, 2), (35, 33)])
def test_extents_that_only_the_run_knows(h: int, w: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, h, w)).astype(np.float32)
    ours = run("(float[B,H,W] x) => (float[B,W,H] y) { y = Transpose<perm=[0,2,1]>(x) }", {"x": x})
    assert np.array_equal(ours, x.transpose(0, 2, 1))


def test_two_transposed_operands_with_others() -> None:
    rng = np.random.default_rng(2)
    feeds = {"x": rng.normal(size=(2, 19, 23)).astype(np.float32), "z": rng.normal(size=(2, 19, 23)).astype(np.float32),
             "r": rng.normal(size=(23, 1)).astype(np.float32), "c": rng.normal(size=19).astype(np.float32)}
    text = """(float[2,19,23] x, float[2,19,23] z, float[23,1] r, float[19] c) => (float[2,23,19] y) {
        a = Transpose<perm=[0,2,1]>(x) b = Transpose<perm=[0,2,1]>(z) s = Sub(a, b) t = Mul(s, r) y = Add(t, c) }"""
    ours = run(text, feeds)
    wanted = (feeds["x"] - feeds["z"]).transpose(0, 2, 1) * feeds["r"] + feeds["c"]
    assert np.abs(ours - wanted).max() <= 1e-6


def test_channels_last() -> None:
    x = np.random.default_rng(3).normal(size=(2, 20, 5, 7)).astype(np.float32)
    ours = run("(float[2,20,5,7] x) => (float[2,5,7,20] y) { y = Transpose<perm=[0,2,3,1]>(x) }", {"x": x})
    assert np.array_equal(ours, x.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("text", [
    # smaller than a square
    "(float[2,40,3] x) => (float[2,3,40] y) { y = Transpose<perm=[0,2,1]>(x) }",
    # a stride along both loops
    "(float[2,9,40] x) => (float[2,20,9] y) { b = Constant<value = int64[1] {0}>() "
    "e = Constant<value = int64[1] {99}>() a = Constant<value = int64[1] {2}>() s = Constant<value = int64[1] {2}>() "
    "h = Slice(x, b, e, a, s) y = Transpose<perm=[0,2,1]>(h) }",
])
def test_what_is_read_element_by_element(text: str) -> None:
    shape = (2, 40, 3) if "40,3" in text else (2, 9, 40)
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    ours = run(text, {"x": x}, turned=False)
    assert np.array_equal(ours, (x if shape[2] == 3 else x[:, :, ::2]).transpose(0, 2, 1))
