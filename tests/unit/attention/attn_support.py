"""The passes that lead to attention composites, on a model in memory."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tilegraph.diagnostics import Decision
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.attention import AttentionFusion
from tilegraph.rewrites.normalise import NORMALISE


def fused(model: onnx.ModelProto, offload: str = "all") -> tuple[ir.Model, list[Decision]]:
    """The model after normalisation and attention fusion, and the decisions about attention."""
    graph = load(model)
    context = PassContext()
    Pipeline((*NORMALISE, AttentionFusion(offload))).run(graph, context)
    return graph, context.diagnostics.of("attention")


def reasons(model: onnx.ModelProto, offload: str = "all") -> list[str]:
    """Why attentions were refused; nothing may have been taken."""
    graph, decisions = fused(model, offload)
    assert not any(d.taken for d in decisions)
    assert not any(n.domain == "ai.tilegraph" for n in graph.graph)
    return [d.reason for d in decisions]
