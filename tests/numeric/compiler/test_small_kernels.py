"""Kernels that only copy, or make a single element, in a partition with others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.compiler.served import normal, numbers, reference, same, served
from tests.unit.fusion.parse import proto
from tilegraph.compiler import optimize

W = f"w = Constant<value = float[64,64] {{{numbers(4096, 5)}}}>()"
STEP = f"""(float[N,62] x, float[2,N,64] s) => (float[1,N,64] y, float[N,1,1] z, float[N,64] t) {{ {W}
    zero = Constant<value = int64[1] {{0}}>() last = Constant<value = int64[1] {{-1}}>()
    first = Constant<value = int64 {{0}}>() pads = Constant<value = int64[4] {{0, 0, 0, 2}}>()
    a = Pad<mode="reflect">(x, pads) p = MatMul(a, w) h = Gather<axis=0>(s, first) q = MatMul(h, w)
    r = Add(p, q) y = Unsqueeze(r, zero) m = ReduceMean<keepdims=1>(r, last) g = Sigmoid(m) z = Unsqueeze(g, last)
    t = Identity(h) }}"""


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step(batch: int) -> None:
    """One node of the plugin does it where the batch is known; a symbolic one might be large."""
    model = proto(STEP.replace("N", "1") if batch == 1 else STEP, 18)
    made = optimize(model)
    assert batch > 1 or made.summary.engines.get("onnxruntime", 0) == 0
    feeds = {"x": normal(batch, 62), "s": normal(2, batch, 64, seed=4)}
    same(served(made, feeds), reference(model, feeds))


def test_single_elements_of_rank_0_stay_with_onnx_runtime() -> None:
    text = f"""(float[1,64] x) => (float[1,64] y, float[1] z, float t) {{ {W} last = Constant<value = int64[1] {{-1}}>()
        y = MatMul(x, w) m = ReduceMean<keepdims=0>(y, last) z = Sigmoid(m) t = Squeeze(z) }}"""
    model = proto(text, 18)
    made = optimize(model)
    same(served(made, {"x": normal(1, 64)}), reference(model, {"x": normal(1, 64)}))


def test_copies_keep_every_bit() -> None:
    """NaN with a payload, infinities, minus zero and denormals."""
    text = f"""(float[2,1,64] s) => (float[1,64] t, float[1,64] y) {{ {W} first = Constant<value = int64 {{0}}>()
        t = Gather<axis=0>(s, first) y = MatMul(t, w) }}"""
    bits = np.arange(128, dtype=np.uint32).reshape(2, 1, 64) * 0x01FD5A31 + 0x7FA00001
    state = bits.view(np.float32)
    made = optimize(proto(text, 18))
    assert made.summary.engines.get("onnxruntime", 0) == 0
    np.testing.assert_array_equal(served(made, {"s": state})[0].view(np.uint32), bits[0])


NORM = """(float[N,8,H,W] x) => (float[N,16,P,Q] y) {{
    w = Constant<value = float[16,8,1,1] {{{weights}}}>() s = Constant<value = float[4] {{1, 0.5, 2, 1}}>()
    t = Constant<value = float[4] {{0, 1, -1, 0.25}}>() groups = Constant<value = int64[3] {{0, 4, -1}}>()
    c = Conv<strides=[2,2]>(x, w) flat = Reshape(c, groups) n = InstanceNormalization(flat, s, t)
    shape = Shape(c) z = Reshape(n, shape) g = Sigmoid(z) y = Mul(z, g) }}"""


def test_group_normalisation_behind_a_stride() -> None:
    """Open sizes: its kernel has both Reshapes, whose extents are those of the convolution's result."""
    model = proto(NORM.format(weights=numbers(16 * 8, 7)), 18)
    made = optimize(model, offload="all")
    (ops,) = [d.data["ops"] for d in made.diagnostics.of("fusion", taken=True)]
    assert ops.count("Reshape") == 2
    for n, h, w in ((1, 9, 12), (2, 5, 3)):
        feeds = {"x": normal(n, 8, h, w)}
        same(served(made, feeds), reference(model, feeds))


WINDOWS = """(float[N,4,8,8] x, float[4,1,8] b) => (float[N,4,8,8] y) {
    rows = Constant<value = int64[3] {-1, 8, 8}>() k = Constant<value = int64[1] {8}>()
    images = Constant<value = int64[4] {-1, 4, 8, 8}>()
    r = Reshape(x, rows) v, i = TopK(r, k) s = Reshape(v, images) a = Add(s, b) y = Softmax(a) }"""


def test_windows_of_an_open_batch() -> None:
    """The kernel reads 4*N windows, and no input has N by itself."""
    model = proto(WINDOWS, 18)
    made = optimize(model, offload="all")
    (ops,) = [d.data["ops"] for d in made.diagnostics.of("fusion", taken=True) if "Softmax" in d.data["ops"]]
    assert ops == ["Reshape", "Add", "Softmax"]
    for n in (1, 3):
        feeds = {"x": normal(n, 4, 8, 8), "b": normal(4, 1, 8)}
        same(served(made, feeds), reference(model, feeds))
    assert made.manifest is not None
    (program,) = [p for p in made.manifest.programs.values() if p.equal]
    assert [(a.evaluate({"4*N": 6}), b.evaluate({"4*N": 6})) for a, b in program.equal] == [(6, 4)]  # an error
