"""QuantizeLinear and DequantizeLinear of regions with scales along any axis and by block, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.numeric.codegen.runner import compile_lowered
from tests.unit.fusion.parse import model, proto
from tilegraph.ops.lower import lower_region
from tilegraph.ops.prims import Decline

Array = np.ndarray

CASES = {  # extents are equal where a wrong axis would go unnoticed otherwise
    "first axis": ("[8,8]", "[8]", "axis=0"),
    "last axis": ("[8,8]", "[8]", "axis=-1"),
    "default axis": ("[8,8,8]", "[8]", ""),
    "middle axis": ("[2,8,8]", "[8]", "axis=-2"),
    "one element": ("[8,8]", "[1]", "axis=0"),
    "blocks": ("[12,8]", "[3,8]", "axis=0, block_size=4"),
    "blocks of the last axis": ("[3,12]", "[3,4]", "axis=1, block_size=3"),
    "a part of a block": ("[10,8]", "[3,8]", "axis=0, block_size=4"),
}


def texts(shape: str, scale: str, attrs: str) -> tuple[str, str]:
    inside = f"<{attrs}>" if attrs else ""
    return (f"(int8{shape} x, float{scale} s, int8{scale} z) => (float{shape} y) "
            f"{{ y = DequantizeLinear{inside}(x, s, z) }}",
            f"(float{shape} x, float{scale} s, int8{scale} z) => (int8{shape} y) "
            f"{{ y = QuantizeLinear{inside}(x, s, z) }}")


def ort_run(text: str, feeds: dict[str, Array], opset: int = 21) -> Array:
    made = proto(text, opset)
    onnx.checker.check_model(made)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(made.SerializeToString(), options,
                                providers=["CPUExecutionProvider"]).run(None, feeds)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("which", [0, 1])
def test_axes(case: str, which: int) -> None:
    text = texts(*CASES[case])[which]
    graph = model(text, 21)
    made = compile_lowered(lower_region(list(graph.graph), list(graph.graph.outputs), {"": 21}))
    rng = np.random.default_rng(0)
    shapes = {v.name: [int(d) for d in v.shape] for v in graph.graph.inputs}
    feeds = {"x": rng.integers(-128, 128, shapes["x"]).astype(np.int8) if which == 0
             else rng.normal(0, 40, shapes["x"]).astype(np.float32),
             "s": rng.uniform(0.5, 3, shapes["s"]).astype(np.float32),
             "z": rng.integers(-20, 20, shapes["z"]).astype(np.int8)}
    got, want = made.run(feeds)[0], ort_run(text, feeds)
    assert len(np.unique(want)) > 8
    assert np.array_equal(got, want)


@pytest.mark.parametrize(("opset", "precision", "in_halves"), [(21, 0, False), (23, 0, True), (23, 1, False)])
def test_float16_is_divided_in_float16_from_opset_23_on(opset: int, precision: int, in_halves: bool) -> None:
    """A quotient just below a half is a half in float16, and rounds to the other side: not where `precision` says
    float32, and not in ONNX Runtime before that attribute."""
    inside = f"<precision={precision}>" if precision else ""
    text = ("(float16[2000] x, float16 s, int16 z) => (int16[2000] y) "
            f"{{ y = QuantizeLinear{inside}(x, s, z) }}")
    made = model(text, opset)
    x, s = np.random.default_rng(0).normal(0, 1, 2000).astype(np.float16), np.float16(0.05)
    feeds = {"x": x, "s": np.array(s), "z": np.array(-1, np.int16)}
    halves, floats = np.rint(x / s), np.rint(x.astype(np.float32) / np.float32(s))
    assert (halves != floats).any()
    kernel = compile_lowered(lower_region(list(made.graph), list(made.graph.outputs), {"": opset}))
    got = kernel.run(feeds)[0]
    assert np.array_equal(got, (halves if in_halves else floats).astype(np.int16) - 1)
    assert np.array_equal(got, ort_run(text, feeds, opset))


@pytest.mark.parametrize(("shape", "scale", "attrs", "reason"), [
    ("[8,6]", "[8]", "axis=1", "along an axis of 6"),
    ("[8,6]", "[6]", "axis=2", "axis 2 of data of rank 2"),
    ("[8,6]", "[3,6]", "axis=0, block_size=2", "for blocks of 2"),
])
def test_declined(shape: str, scale: str, attrs: str, reason: str) -> None:
    graph = model(texts(shape, scale, attrs)[0], 21)
    with pytest.raises(Decline, match=reason):
        lower_region(list(graph.graph), list(graph.graph.outputs), {"": 21})
