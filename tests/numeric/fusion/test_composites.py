"""Composites have bodies: ONNX Runtime alone computes from them what it computed before, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import HealthCheck, Phase, assume, given, settings

from tests.numeric.codegen.graphs import Graph, graphs
from tests.numeric.codegen.reference import Array, narrowed
from tilegraph.ops.dtypes import stored_name
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
from tilegraph.rewrites.fusion.composite import DOMAIN

EXAMPLES = int(os.environ.get("TILEGRAPH_EXAMPLES", "60"))


def session(model: ir.Model) -> Any:
    """None where ONNX Runtime has no kernel for an operator in some dtype."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error) or "INVALID_GRAPH" in str(error):
            return None
        raise


@settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=EXAMPLES <= 100, phases=(Phase.generate,),
          suppress_health_check=list(HealthCheck))
@given(graphs())
def test_random_graphs_give_the_same_bits_after_fusion(graph: Graph) -> None:
    count = sum(1 for n in graph.model.graph)
    assume(count > 0)
    feeds: dict[str, Array] = {}
    ends = (*graph.model.graph.inputs, *graph.model.graph.outputs)
    assume(all(v.dtype != ir.DataType.BFLOAT16 for v in ends))  # ONNX Runtime's Python interface does not take it
    for value in graph.model.graph.inputs:
        stored = stored_name(value.dtype)
        feeds[value.name or ""] = narrowed(graph.values[value.name or ""], stored)
    before = session(graph.model)
    assume(before is not None)
    wanted = before.run(None, feeds)
    names = [o.name for o in before.get_outputs()]
    context = PassContext()
    modified = RegionFusion("all").run(graph.model, context).modified
    assert modified == any(n.domain == DOMAIN for n in graph.model.graph)
    proto = ir.to_proto(graph.model)
    onnx.checker.check_model(proto)
    fused = sum(len(d.data["nodes"]) for d in context.diagnostics if d.taken)
    refused = {d.subject for d in context.diagnostics if not d.taken}
    assert fused >= count - len(refused)  # a node is in a region or has a reason; copies of views count twice
    after = session(graph.model)
    assert after is not None
    assert [o.name for o in after.get_outputs()] == names
    for ours, theirs in zip(after.run(None, feeds), wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f")
