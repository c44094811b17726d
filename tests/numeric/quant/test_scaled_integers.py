"""Products of integers with scales against ONNX Runtime: QLinearMatMul, MatMulIntegerToFloat, DequantizeLinear."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.numeric.quant.quant_runner import Array, compiled, run
from tests.unit.fusion.parse import proto
from tilegraph.ops.prims import Decline

PAIRS = [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]


def integers(dtype: str, *shape: int, seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype))


def near_the_middle(dtype: str, *values: int) -> Array:
    """Zero points, [] for one value."""
    found = np.array(values, np.int32) + (128 if dtype == "uint8" else 0)
    return np.asarray(found.astype(dtype).reshape(() if len(values) == 1 else -1))


def theirs(text: str, feeds: dict[str, Array], optimized: bool = False) -> Array:
    """ONNX Runtime's answer; constants are inputs there, too."""
    made = proto(text, 21)
    onnx.checker.check_model(made)
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def same_steps(got: Array, want: Array, apart: int = 0) -> None:
    assert got.dtype == want.dtype
    assert len(np.unique(want)) > 8, "a constant answer proves nothing"
    assert int(np.abs(got.astype(np.int32) - want).max()) <= apart


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("m", [1, 9])
def test_qlinear_matmul(a: str, b: str, each: bool, m: int) -> None:
    """The same integers."""
    scales = "[50]" if each else ""
    text = (f"({a}[{m},72] x, float p, {a} pz, {b}[72,50] w, float{scales} q, {b}{scales} qz, float r, {a} rz) => "
            f"({a}[{m},50] y) {{ y = QLinearMatMul(x, p, pz, w, q, qz, r, rz) }}")
    rng = np.random.default_rng(3)
    shape = (50,) if each else ()
    feeds = {"x": integers(a, m, 72), "w": integers(b, 72, 50, seed=1), "p": np.array(0.013, np.float32),
             "pz": near_the_middle(a, 3), "q": rng.uniform(0.01, 0.03, shape).astype(np.float32),
             "qz": near_the_middle(b, *(range(-20, 30) if each else (-5,))),
             "r": np.array(0.2, np.float32), "rz": np.array(7, np.dtype(a))}
    same_steps(run(compiled(text), feeds), theirs(text, feeds))


@pytest.mark.parametrize("each", [False, True])
def test_to_float(each: bool) -> None:
    scales = "[50]" if each else ""
    text = (f"(uint8[9,72] x, int8[72,50] w, float p, float{scales} q, uint8 pz, int8{scales} qz, float[50] c) => "
            "(float[9,50] y) { t = com.microsoft.MatMulIntegerToFloat(x, w, p, q, pz, qz, c) y = Identity(t) }")
    rng = np.random.default_rng(3)
    feeds = {"x": integers("uint8", 9, 72), "w": integers("int8", 72, 50, seed=1), "p": np.array(0.013, np.float32),
             "q": rng.uniform(0.01, 0.03, (50,) if each else ()).astype(np.float32), "pz": np.array(131, np.uint8),
             "qz": near_the_middle("int8", *(range(-20, 30) if each else (-5,))),
             "c": rng.normal(size=50).astype(np.float32)}
    kernel = compiled(text.replace("y = Identity(t)", "y = Neg(t)"))
    want = theirs(text, feeds)
    assert float(np.std(want)) > 0.1
    assert float(np.abs(-run(kernel, feeds) - want).max()) <= 4e-6 * float(np.abs(want).max())


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_dequantized(a: str, b: str, each: bool, turned: bool) -> None:
    """As ONNX Runtime computes it in floats, to a step where a result is halfway; a bias and an activation between."""
    scales, shape = ("[50]", "[50,72]") if turned else ("[50]", "[72,50]")
    scales = scales if each else ""
    axis = 0 if turned else 1
    text = (f"({a}[9,72] x, float p, {a} pz, {b}{shape} w, float{scales} q, {b}{scales} qz, float[50] c, float r, "
            f"uint8 rz) => (uint8[9,50] y) {{ d = DequantizeLinear(x, p, pz) "
            f"v = DequantizeLinear<axis={axis}>(w, q, qz) "
            f"t = Gemm<transB={int(turned)}>(d, v, c) u = Relu(t) y = QuantizeLinear(u, r, rz) }}")
    rng = np.random.default_rng(3)
    count = (50,) if each else ()
    feeds = {"x": integers(a, 9, 72), "w": integers(b, 50, 72, seed=1) if turned else integers(b, 72, 50, seed=1),
             "p": np.array(0.013, np.float32), "pz": near_the_middle(a, 3),
             "q": rng.uniform(0.01, 0.03, count).astype(np.float32),
             "qz": near_the_middle(b, *(range(-20, 30) if each else (-5,))),
             "c": rng.normal(size=50).astype(np.float32), "r": np.array(0.06, np.float32), "rz": np.array(7, np.uint8)}
    kernel = compiled(text)
    assert kernel.kernel.filters[0][1].kind == ("rowquads" if turned else "quads"), "it was summed in floats"
    same_steps(run(kernel, feeds), theirs(text, feeds), apart=1)


def test_more_products_than_int32_holds_are_summed_in_floats() -> None:
    with pytest.raises(Decline, match="left operand is computed"):
        compiled("(uint8[2,40000] x, float p, uint8 z, int8[40000,16] w) => (float[2,16] y) "
                 "{ d = DequantizeLinear(x, p, z) v = DequantizeLinear(w, p) y = MatMul(d, v) }")


@pytest.mark.parametrize(("text", "reason"), [
    ("(uint8[9,72] x, float[9] p, uint8[9] pz, int8[72,50] w, float q, int8 qz, float r, uint8 rz) => (uint8[9,50] y) "
     "{ y = QLinearMatMul(x, p, pz, w, q, qz, r, rz) }", "a zero point for each row"),
    ("(uint8[9,72] x, float p, uint8 pz, int8[72,50] w, float q, int8 qz, float[9] r, uint8[9] rz) => (uint8[9,50] y) "
     "{ y = QLinearMatMul(x, p, pz, w, q, qz, r, rz) }", "a scale of the result for each row"),
])
def test_declined(text: str, reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        compiled(text)
