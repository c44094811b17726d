"""The machine's peak, and the share of it that the products of a run take."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import pipeline, report
from models.cases import Case
from models.peak import peak, product_flop
from tilegraph.bench import BenchResult, ModelTiming
from tilegraph.diagnostics import Diagnostics


@pytest.fixture
def original(tmp_path: Path) -> Path:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "m", info[:1], info[1:])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_operations_of_products(original: Path) -> None:
    said = Diagnostics()
    said.took("gemm", "a", "", rows="8*n", depth=64, columns=32, precision="float32")
    said.took("gemm", "b", "", rows="10", depth=5, columns=3, precision="bf16")
    said.refused("gemm", "c", "")
    feeds = {"x": np.zeros((3, 8, 64), np.float32)}
    assert product_flop(original, said, feeds) == 2 * 24 * 64 * 32 + 10 * 5 * 3
    said.took("gemm", "d", "", rows="m", depth=64, columns=32, precision="float32")
    assert math.isnan(product_flop(original, said, feeds))


def test_the_share_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "peak", lambda: 200e9)
    timing = ModelTiming("ours", "ours", "P", 2e-3, 2e-3, 2e-3, 1.0, 1.0, 1.0, 0.01, 1, 1, 1, 1, (2e-3,))
    result = BenchResult(1, 30, {}, (timing, timing), 0.957, None, {})
    outcome = pipeline.Outcome(Case("m", "built", Path, dict), benches={1: result}, flop=0.1e9)
    assert report.product_lines([outcome]) == [
        "m: 0.1 GFLOP in products, a run of 2 ms: 0.25 of the peak of 200 GFLOP/s"]
    outcome.flop = math.nan
    assert report.product_lines([outcome]) == []


def test_the_peak_of_this_machine() -> None:
    """One core that does a multiplication and an addition of whole vectors, once or twice a cycle."""
    assert 5e9 < peak() < 1e12
