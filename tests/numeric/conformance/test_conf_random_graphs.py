"""Random graphs: after fusion the model is valid and runs the same on plain ONNX Runtime, and so do the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from conf_graphs import RandomGraph
from conf_serve import serve

from tilegraph.compiler import optimize
from tilegraph.passes.invariants import check_model
from tilegraph.verify.compare import compare_exact, compare_floats, default_rtol, is_float, largest, wide

STRUCTURE = range(20, 80)
SERVED = (3, 18, 28, 31, 59)


def plain(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compare(model: onnx.ModelProto, wanted: list[Any], found: list[Any]) -> None:
    for value, a, b in zip(model.graph.output, wanted, found, strict=True):
        outcome = compare_exact(b, a)
        if is_float(a.dtype):
            # Differences of values near 1 may be small: their error is that of the operands.
            rtol = default_rtol(a.dtype)
            outcome = compare_floats(b, wide(a), a, rtol, rtol * max(largest(wide(a)), 0.3) / 10)
        assert not outcome.problem, f"{value.name}: {outcome.problem}"


def sets(graph: RandomGraph) -> list[dict[str, Any]]:
    return [graph.feeds(), *([graph.feeds(3, 5), graph.feeds(1, 1), graph.feeds(1, 17)] if graph.dynamic else [])]


def test_fusion_keeps_random_graphs_whole() -> None:
    regions = cloned = 0
    for seed in STRUCTURE:
        graph = RandomGraph(seed, dynamic=bool(seed % 2))
        model = graph.model()
        optimized = optimize(model, offload="all", dry_run=True)
        check_model(optimized.portable)
        regions += optimized.summary.regions
        taken = [n for d in optimized.diagnostics.of("fusion", taken=True) for n in d.data.get("nodes", ())]
        cloned += len(taken) - len(set(taken))
        reference, fused = plain(model), plain(ir.to_proto(optimized.portable))
        for feeds in sets(graph):
            compare(model, reference.run(None, feeds), fused.run(None, feeds))
    assert regions > len(STRUCTURE)
    assert cloned > 0, "no view was shared between regions: the graphs test less than they should"


@pytest.mark.parametrize("seed", SERVED)
def test_kernels_of_random_graphs(tmp_path: Path, seed: int) -> None:
    graph = RandomGraph(seed, dynamic=bool(seed % 2))
    model = graph.model()
    served = serve(model, tmp_path)
    assert served.kernels > 0
    for feeds in sets(graph):
        compare(model, served.plain.run(None, feeds), served.session.run(None, feeds))


def test_the_comparison_can_fail() -> None:
    graph = RandomGraph(3, dynamic=False)
    model = graph.model()
    answers = plain(model).run(None, graph.feeds())
    wrong = [np.where(np.arange(a.size).reshape(a.shape) == 0, a + a.dtype.type(1), a) for a in answers]
    with pytest.raises(AssertionError):
        compare(model, answers, wrong)
