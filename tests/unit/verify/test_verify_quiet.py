"""Loading a model for analysis says nothing, whatever onnx's shape inference thinks of it."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx
import onnx.parser
import pytest

from tilegraph.verify import load_for_analysis

ODD = """<ir_version: 8, opset_import: ["" : 17]> g (bool c, float[3,4] x) => (float[N] y) {
    y = If(c) <then_branch = a () => (float[N] p) { m = MatMul(x, x)  p = ReduceSum<keepdims=0>(m) },
               else_branch = b () => (float[N] q) { q = ReduceMax<keepdims=0>(x) }>
}"""


def test_a_failed_shape_inference_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(onnx.parser.parse_model(ODD).SerializeToString())
    with caplog.at_level(logging.WARNING):
        model = load_for_analysis(path)
    assert [n.op_type for n in model.graph] == ["If"]
    assert not caplog.records
