"""Networks of images whose kernels run a few images at a time: the same answers, in less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conformance.large import image
from tests.numeric.compiler.served import Array, normal, reference, same, served
from tests.unit.fusion.parse import proto
from tilegraph.compiler import OptimizedModel, optimize, rounds
from tilegraph.spec.artifact import Program

_WEIGHTS = {"w1": (32, 3, 1, 1), "w2": (32, 32, 1, 1), "w3": (32, 1, 3, 3), "w4": (8, 32, 1, 1), "w5": (32, 8, 1, 1),
            "w6": (20, 32, 1, 1), "w7": (20, 20, 1, 1)}

# A residual sum, a depthwise convolution, squeeze and excite, channels joined, and one value that the caller wants too.
_NET = """(float[N,3,6,5] x) => (float[N,20,6,5] y, float[N,32,6,5] d) {
    a0 = Conv(x, w1) a = Relu(a0)
    b0 = Conv(a, w2) b = Add(b0, a)
    d0 = Conv<pads=[1,1,1,1], group=32>(b, w3) d = Relu(d0)
    g = GlobalAveragePool(d) e0 = Conv(g, w4) e = Relu(e0) f0 = Conv(e, w5) f = Sigmoid(f0) s = Mul(d, f)
    h0 = Conv(s, w6) h = Relu(h0)
    i0 = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(h) i = Conv(i0, w7)
    c = Concat<axis=1>(i, h) k = Conv(c, w8) y = Relu(k)
}"""


def network() -> onnx.ModelProto:
    model = proto(_NET, 18)
    for name, shape in {**_WEIGHTS, "w8": (20, 40, 1, 1)}.items():
        data = normal(*shape, seed=len(name) + shape[0] + shape[1]) / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(onnx.numpy_helper.from_array(data.astype(np.float32), name))
    return model


def program(made: OptimizedModel) -> Program:
    assert made.manifest is not None
    (found,) = made.manifest.programs.values()
    return found


def test_rounds_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_TASKS", 0)  # the kernels are far too small for rounds
    made = {}
    for size in (1 << 40, 30_000):
        monkeypatch.setattr(rounds, "_CACHE", size)
        made[size] = optimize(network(), offload="all", cache_dir=tmp_path)
    whole, few = made.values()
    sizes = {"N": 7}
    (found,) = program(few).rounds
    assert found.calls >= 8
    assert found.step.evaluate(sizes) == 2
    small, large = (program(m).arena_bytes.evaluate(sizes | {found.name: step}) for m, step in ((few, 2), (whole, 7)))
    assert small < 0.6 * large
    for batch, threads in ((7, 1), (2, 2), (1, 1), (5, 2)):
        feeds: dict[str, Array] = {"x": normal(batch, 3, 6, 5, seed=batch)}
        ours = served(few, feeds, threads)
        for one, other in zip(ours, served(whole, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
        same(ours, reference(network(), feeds))


def test_rounds_of_equal_blocks_take_turns_in_one_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_CACHE", 60_000)
    monkeypatch.setattr(rounds, "_TASKS", 0)
    arenas = []
    for blocks in (2, 3):
        model = image(blocks)
        made = optimize(model, cache_dir=tmp_path)
        assert len(program(made).rounds) > blocks
        arenas.append(program(made).arena_bytes)
        for batch, threads in ((7, 1), (5, 2), (1, 1)):
            feeds = {"x": normal(batch, 16, 9, 11, seed=batch)}
            same(served(made, feeds, threads), reference(model, feeds))
    sizes = {"batch": 7, "height": 9, "width": 11} | {s: 7 for a in arenas for s in a.symbols if s.startswith("round")}
    few, many = (a.evaluate(sizes) for a in arenas)
    assert few == many
