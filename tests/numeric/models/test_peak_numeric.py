"""The machine's peak, and the share of it that the products of a run take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import pipeline, report
from models.attention import Attention
from models.builders.gpt2 import gpt2
from models.cases import Case
from models.peak import peak
from models.products import product_flop
from tilegraph.bench import BenchResult, ModelTiming
from tilegraph.compiler import OptimizedModel, optimize


def made(tmp_path: Path, nodes: list[onnx.NodeProto], shape: list[int | str],
         constants: Mapping[str, npt.NDArray[Any]]) -> OptimizedModel:
    """`nodes` from x, of `shape`, to y, optimized."""
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "m", info[:1], info[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    return optimize(tmp_path / "m.onnx", offload="all", dry_run=True)


def test_operations_of_a_matrix_product(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = made(tmp_path, [node], ["n", 8, 64], {"w": np.ones((64, 32), np.float32)})
    assert product_flop(model, {"x": np.zeros((3, 8, 64), np.float32)}) == 2 * 24 * 64 * 32


def test_operations_of_convolutions(tmp_path: Path) -> None:
    """A 3x3 of 16 to 32 channels on 10x10, and one of stride 2 for each channel."""
    nodes = [helper.make_node("Conv", ["x", "v"], ["t"], pads=[1, 1, 1, 1]),
             helper.make_node("Conv", ["t", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1], group=32)]
    weights = {"v": np.ones((32, 16, 3, 3), np.float32), "w": np.ones((32, 1, 3, 3), np.float32)}
    model = made(tmp_path, nodes, ["n", 16, 10, 10], weights)
    each = 32 * 16 * 9 * 100 + 32 * 9 * 25
    assert product_flop(model, {"x": np.zeros((2, 16, 10, 10), np.float32)}) == 2 * 2 * each


def test_operations_of_attention_leave_out_what_is_hidden() -> None:
    case = Attention("causal", 256, "causal")
    for trust in (False, True):
        model = optimize(case.model(), dry_run=True, trust_hidden=trust)
        assert 0.49 < product_flop(model, case.inputs()) / (2 * 12 * 256 * 256 * 128) < 0.52


def test_operations_of_attention_whose_mask_is_an_input() -> None:
    case = Attention("documents", 256, "documents")
    model, feeds = optimize(case.model(), dry_run=True), case.inputs()
    assert math.isnan(product_flop(model, feeds))
    share = product_flop(model, feeds, lambda sizes: optimize(case.model(), dry_run=True, sample=feeds))
    assert 0.1 < share / (2 * 12 * 256 * 256 * 128) < 0.5  # 8 documents


def test_only_sizes_with_a_name_of_their_own_are_asked_for() -> None:
    """A decode step's mask is an input of past+1 keys, which is no dim that can be fixed."""
    step = gpt2(batch="batch", seq=1, past="past", hidden=32, heads=2)
    cache = np.ones((3, 2, 6, 16), np.float32)
    feeds = {"hidden_states": np.ones((3, 1, 32), np.float32), "attention_mask": np.ones((3, 7), np.int64),
             "past_key_values.0.key": cache, "past_key_values.0.value": cache}
    model = optimize(step, offload="all", dry_run=True)
    count = product_flop(
        model, feeds, lambda sizes: optimize(step, dims=sizes, offload="all", dry_run=True, sample=feeds))
    assert count == 2 * 3 * (2 * 7 * (16 + 16) + 12 * 32 * 32)


def test_an_extent_that_is_not_known_asks_for_fixed_sizes(tmp_path: Path) -> None:
    node, weight = helper.make_node("MatMul", ["x", "w"], ["y"]), {"w": np.ones((64, 32), np.float32)}
    model, static = (made(tmp_path, [node], [rows, 64], weight) for rows in ("n", 8))
    assert math.isnan(product_flop(model, {}))
    assert product_flop(model, {}, lambda sizes: static) == 2 * 8 * 64 * 32


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
