"""Converted models give what the original gives on ONNX Runtime: bit for bit, with one exception that is stated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from norm_ort import corpus_feeds, run, spread

from tilegraph.diagnostics import Diagnostics
from tilegraph.io import load, to_opset
from tilegraph.passes import PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.normalise import Shapes

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (2, 3, 4, 6)).astype(np.float32)


def same(body: str, opset: int, version: int = 18, *, inputs: str = "float[2, 3, 4, 6] x", outputs: str = "y",
         feeds: dict[str, np.ndarray] | None = None, known_shapes: bool = True, rtol: float = 0) -> None:
    feeds = feeds or {"x": X}
    text = f'<ir_version: 7, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs_of(outputs)}) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = load(proto)
    if known_shapes:
        Shapes().run(model, PassContext())
    log = Diagnostics()
    assert to_opset(model, version, log), [d.reason for d in log]
    check_model(model)
    before, after = run(proto, feeds), run(model, feeds)
    assert before.keys() == after.keys()
    for name, expected in before.items():
        assert expected.dtype == after[name].dtype
        np.testing.assert_allclose(after[name], expected, rtol=rtol, atol=rtol, err_msg=name)


def outputs_of(names: str) -> str:
    return ", ".join(f"{'int64' if n == 'ints' else 'float'}[1] {n}" for n in names.split())


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("known_shapes", [True, False])
def test_softmax_family(op: str, axis: int, known_shapes: bool) -> None:
    if known_shapes:
        same(f"y = {op} <axis = {axis}> (x)", 12)
    else:
        same(f"n = Shape(x)  r = Reshape(x, n)  y = {op} <axis = {axis}> (r)", 12, known_shapes=False)


def test_softmax_default_axis() -> None:
    same("y = Softmax(x)", 11)


@pytest.mark.parametrize("body", [
    "a = Unsqueeze <axes = [0, 3]> (x)  y = Squeeze <axes = [3]> (a)",
    "a = Unsqueeze <axes = [0]> (x)  y = Squeeze(a)",
    "y = ReduceSum <axes = [1, -1], keepdims = 0> (x)",
    "y = ReduceSum(x)",
    "y = ReduceMean <axes = [2]> (x)",
    "y = ReduceL2 <axes = [0, 1]> (x)",
    "y = ReduceMax <axes = [1]> (x)",
    "y = ReduceLogSumExp <axes = [3], keepdims = 0> (x)",
    "a, b = Split <axis = 3, split = [2, 4]> (x)  y = Concat <axis = 3> (b, a)",
    "a, b = Split <axis = 3> (x)  y = Concat <axis = 3> (b, a)",
    "y = Pad <mode = \"constant\"> (x, p)",
    "y = Clip(x, lo)",
])
def test_from_opset_12(body: str) -> None:
    constants = "p = Constant <value = int64[8] {0, 0, 1, 0, 0, 0, 2, 0}> ()  lo = Constant <value = float {-0.5}> () "
    same(constants + body, 12)


@pytest.mark.parametrize("body", [
    "y = Clip <min = -0.5, max = 0.75> (x)",
    "y = Clip <max = 0.75> (x)",
    "y = Clip(x)",
    "y = Pad <pads = [0, 0, 1, 0, 0, 0, 2, 0], value = 1.5> (x)",
    "y = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 2], mode = \"reflect\"> (x)",
    "y = Slice <starts = [1, -2], ends = [3, 99], axes = [2, 3]> (x)",
    "y = Slice <starts = [0, 1], ends = [1, 3]> (x)",
    "y, ints = TopK <k = 2, axis = 2> (x)",
    "y = Upsample <mode = \"nearest\", scales = [1.0, 1.0, 2.0, 3.0]> (x)",
    "y = Upsample <mode = \"linear\", scales = [1.0, 1.0, 2.0, 2.0]> (x)",
    "y = Dropout <ratio = 0.25> (x)",
    "y = MaxPool <kernel_shape = [2, 2]> (x)",
    "y = Flatten <axis = 2> (x)",
])
@pytest.mark.parametrize("version", [18, 21, 23])
def test_from_opset_8(body: str, version: int) -> None:
    same(body, 8, version, outputs="y ints" if "ints" in body else "y")


@pytest.mark.parametrize("version", [18, 21, 23])
def test_average_pool(version: int) -> None:
    """ONNX Runtime has another kernel for it since opset 19, which sums in another order: within 2 eps."""
    body = "y = AveragePool <kernel_shape = [2, 2], count_include_pad = 1, pads = [1, 1, 1, 1]> (x)"
    same(body, 8, version, rtol=0 if version < 19 else 2 * float(np.finfo(np.float32).eps))


def test_upsample_9_and_resize_10() -> None:
    scales = "s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> () "
    same(scales + "y = Upsample <mode = \"nearest\"> (x, s)", 9)
    same(scales + "y = Resize <mode = \"nearest\"> (x, s)", 10)
    same(scales + "y = Resize <mode = \"nearest\"> (x, s)", 10, version=11)
    same(scales + "y = Resize <mode = \"linear\"> (x, s)", 10)


def test_batch_normalisation() -> None:
    inputs = "float[2, 3, 4, 6] x, float[3] s, float[3] b, float[3] m, float[3] v"
    feeds = {"x": X, **{k: RNG.uniform(0.5, 2, 3).astype(np.float32) for k in "sbmv"}}
    same("y = BatchNormalization(x, s, b, m, v)", 8, inputs=inputs, feeds=feeds)


def test_scatter_and_others_that_were_renamed() -> None:
    feeds = {"x": X, "i": np.array([[[[1, 0, 2, 3, 1, 0]]]]), "u": X[:1, :1, :1]}
    same("y = Scatter <axis = 2> (x, i, u)", 9, inputs="float[2, 3, 4, 6] x, int64[1, 1, 1, 6] i, float[1, 1, 1, 6] u",
         feeds=feeds)


def test_grid_sample_modes() -> None:
    grid = RNG.uniform(-1, 1, (2, 5, 5, 2)).astype(np.float32)
    for mode in ("bilinear", "nearest", "bicubic"):
        same(f"y = GridSample <mode = \"{mode}\"> (x, g0)", 16, 20,
             inputs="float[2, 3, 4, 6] x, float[2, 5, 5, 2] g0", feeds={"x": X, "g0": grid})


def test_group_normalisation() -> None:
    x = RNG.normal(0, 1, (2, 4, 5)).astype(np.float32)
    s, b = (RNG.normal(1, 1, 2).astype(np.float32) for _ in range(2))
    text = """<ir_version: 8, opset_import: ["" : %d]> g (float[2, 4, 5] x, float[%d] s, float[%d] b)
        => (float[2, 4, 5] y) { y = GroupNormalization <num_groups = 2> (x, s, b) }"""
    model = load(onnx.parser.parse_model(text % (18, 2, 2)))
    assert to_opset(model, 21)
    check_model(model)
    wide = onnx.parser.parse_model(text % (21, 4, 4))  # ONNX Runtime no longer has the old definition
    expected = run(wide, {"x": x, "s": np.repeat(s, 2), "b": np.repeat(b, 2)})
    np.testing.assert_array_equal(run(model, {"x": x, "s": s, "b": b})["y"], expected["y"])


@pytest.mark.parametrize("version", [18, 21])
def test_a_spread_of_the_corpus(corpus: Path, version: int) -> None:
    changed = 0
    for path in spread(sorted(corpus.glob("*.onnx")), 12):
        model = load(path)
        if not to_opset(model, version):
            continue
        check_model(model)
        for feeds in corpus_feeds(path):
            try:
                expected = run(str(path), feeds)
            except Exception:
                continue  # the original does not run
            changed += 1
            for name, array in run(model, feeds).items():
                np.testing.assert_array_equal(array, expected[name], err_msg=f"{path.stem}: {name}")
    assert changed > 5
