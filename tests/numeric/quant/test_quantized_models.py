"""Models in the forms that quantizers write, served, against ONNX Runtime: dynamic, and QDQ around attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from models import builders
from models.inputs import inputs_for
from tilegraph.compiler import optimize

SIZES = {"hidden": 64, "heads": 2, "seq": 32, "ffn": 128}


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, path: Path) -> None:
        self.left = [inputs_for(path, seed=k) for k in range(3)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("kind", ["dynamic", "qdq", "qdq by column"])
def test_bert(kind: str, tmp_path: Path) -> None:
    source = builders.path("bert", size="small", **SIZES)
    path = tmp_path / "m.onnx"
    if kind == "dynamic":
        quantize_dynamic(str(source), str(path), weight_type=QuantType.QInt8)
    else:
        quantize_static(str(source), str(path), _Samples(source), quant_format=QuantFormat.QDQ,
                        per_channel=kind == "qdq by column", activation_type=QuantType.QUInt8,
                        weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    feeds = inputs_for(source, seed=7)
    made = optimize(path)
    want = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    got = made.session(threads=1).run(None, feeds)[0]
    exact = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert any(d.stage == "gemm" and d.taken for d in made.diagnostics)
    error = float(np.abs(want - exact).max())  # of the quantisation, a step of which may fall to the other side
    assert 0 < error < 0.5
    assert float(np.abs(got - want).max()) <= error


def test_weights_on_request(tmp_path: Path) -> None:
    """The answer is that of the rounded matrices, which the portable model states in standard ONNX."""
    source = builders.path("bert", size="small", **SIZES)
    feeds = inputs_for(source, seed=7)
    made = optimize(source, weights="int4")
    assert [w["bits"] for w in made.summary.weights] == [4] * 6
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    stated = ort.InferenceSession(ir.to_proto(made.portable).SerializeToString(), options,
                                  providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    got = made.session(threads=1).run(None, feeds)[0]
    exact = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert float(np.abs(stated - exact).max()) > 1e-2
    assert float(np.abs(got - stated).max()) <= 1e-5 * float(np.abs(stated).max())
