"""Operators that ONNX Runtime itself defines in the default domain, as its tools write them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.numeric.compiler.served import normal, reference, same, served
from tests.unit.fusion.parse import proto
from tilegraph.compiler import optimize


@pytest.mark.parametrize(("opset", "norm"), [
    (11, "LayerNormalization(a, s, b)"), (16, "LayerNormalization<axis=-1, epsilon=0.01>(a, s, b)"),
    (11, "SimplifiedLayerNormalization(a, s)"), (20, "SimplifiedLayerNormalization<epsilon=0.01>(a, s)"),
])
def test_normalisations(opset: int, norm: str) -> None:
    model = proto(f"""(float[N,64] x, float[64] s, float[64] b, float[64,64] w) => (float[N,64] y) {{
        a = Add(x, x) t = {norm} y = Tanh(t) }}""", opset)
    made = optimize(model, offload="all")
    assert [n.op_type.partition("_")[0] for n in made.portable.graph] == ["Region"]
    feeds = {"x": normal(5, 64), "s": normal(64, seed=1), "b": normal(64, seed=2), "w": normal(64, 64, seed=3)}
    want = reference(model, feeds)
    same(served(made, feeds), want)
    portable = ort.InferenceSession(ir.to_proto(made.portable).SerializeToString(), providers=["CPUExecutionProvider"])
    same(portable.run(None, feeds), want)


@pytest.mark.parametrize(("source", "scale"), [("float", "float16"), ("float16", "float")])
def test_a_scale_of_another_dtype_gives_the_result_its_dtype(source: str, scale: str) -> None:
    model = proto(f"""({source}[N,64] x, {scale}[64] s) => ({scale}[N,64] y) {{
        a = Neg(x) t = SimplifiedLayerNormalization(a, s) y = Tanh(t) }}""", 11)
    made = optimize(model, offload="all")
    assert "its scale has another dtype" in str(made.summary.refusals)
    names = {"float": np.float32, "float16": np.float16}
    feeds = {"x": normal(3, 64).astype(names[source]), "s": normal(64, seed=1).astype(names[scale])}
    (got,), (want,) = served(made, feeds), reference(model, feeds)
    assert got.dtype == want.dtype
    assert np.abs(got.astype(np.float32) - want.astype(np.float32)).max() <= 1e-3


def test_weights_on_request_raise_the_opset() -> None:
    model = proto("""(float[N,64] x, float[64] s) => (float[N,64] y) {
        a = Add(x, x) t = LayerNormalization(a, s) y = MatMul(t, w) }""", 11)
    model.graph.initializer.append(numpy_helper.from_array(normal(64, 64), "w"))
    made = optimize(model, weights="int8")
    assert made.portable.opset_imports[""] >= 21
    assert len(made.summary.weights) == 1


def test_an_older_definition_is_not_taken_for_onnx_s() -> None:
    model = proto("""(float[2,3,4,5] x) => (float[2,3,4,5] y) {
        t = MeanVarianceNormalization<across_channels=1>(x) y = Tanh(t) }""", 8)
    made = optimize(model, offload="all")
    feeds = {"x": normal(2, 3, 4, 5)}
    same(served(made, feeds), reference(model, feeds))
