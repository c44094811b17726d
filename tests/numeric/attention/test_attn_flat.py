"""Blocks of which every score is one number: the sum of the values stands for products and exponentials."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilegraph.codegen.attention.blocks as under_test
from tests.numeric.attention.attn_runner import compile_attention, run
from tests.numeric.codegen.runner import Array

LENGTH, DEPTH = 150, 24
LOW = float(np.finfo(np.float32).min)


def answer(mask: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """What the kernel gives and what float64 gives of scores that were rounded to float32."""
    nodes = [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["q", "kt"], ["s"]), helper.make_node("Add", ["s", "mask"], ["x"]),
             helper.make_node("Softmax", ["x"], ["p"]), helper.make_node("MatMul", ["p", "v"], ["y"])]
    shape = [1, 2, LENGTH, DEPTH]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    graph = helper.make_graph(nodes, "flat", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
                              [numpy_helper.from_array(mask, "mask")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled, _, fused = compile_attention(model)
    got = run(compiled, fused, {"q": q, "k": k, "v": v}, tasks=2)
    products = (q.astype(np.float64) @ np.swapaxes(k, -1, -2).astype(np.float64)).astype(np.float32)
    x = (products + mask).astype(np.float64)
    weights = np.exp(x - x.max(-1, keepdims=True))
    return got, weights / weights.sum(-1, keepdims=True) @ v


def operands() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, LENGTH, DEPTH)).astype(np.float32) for _ in range(3))
    return q * np.float32(0.3), k, v


def causal(hidden: float) -> Array:
    allowed = np.arange(LENGTH)[None] <= np.arange(LENGTH)[:, None]
    return np.where(allowed, 0.0, hidden).astype(np.float32)[None, None]


@pytest.mark.parametrize("low", [LOW, -3e38, -1e12])
@pytest.mark.parametrize("rows", [slice(0, 150), slice(128, 150), slice(100, 130)])
def test_rows_that_are_hidden_whole(low: float, rows: slice) -> None:
    """Some share their block of queries with rows that have keys."""
    mask = causal(low)
    mask[..., rows, :] = low
    got, want = answer(mask, *operands())
    assert np.allclose(got, want, rtol=0, atol=2e-6)


def test_two_levels() -> None:
    """The lower level has no weight where there is a higher one, before it or behind it."""
    for first, second in ((-1e12, -2e12), (-2e12, -1e12)):
        mask = np.full((1, 1, LENGTH, LENGTH), first, np.float32)
        mask[..., 64:] = second
        got, want = answer(mask, *operands())
        assert np.allclose(got, want, rtol=0, atol=2e-6)


def test_flat_and_other_blocks_of_the_same_height() -> None:
    """Scores of 0 beside scores about 0: neither is left out."""
    q, k, v = operands()
    k[:, :, 64:128] = 0.0
    mask = causal(-1e12)
    got, want = answer(mask, q, k, v)
    assert np.allclose(got, want, rtol=0, atol=2e-6)
    got, want = answer(mask, q * 0, k, v)
    assert np.allclose(got, want, rtol=0, atol=2e-6)


def test_the_sums_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them rows that are hidden whole would be whatever they were before: the kernel relies on them."""
    monkeypatch.setattr(under_test, "flat_block", lambda e, *_: e.scalar("nothing", "float32", e.f32(0.0)))
    mask = np.full((1, 1, LENGTH, LENGTH), LOW, np.float32)
    mask[..., 0] = LOW / 2  # constant masks of one value are not masks
    mask[..., 128:, :] = LOW
    got, want = answer(mask, *operands())
    assert not np.allclose(got[..., 128:, :], want[..., 128:, :], rtol=0, atol=2e-6, equal_nan=True)
