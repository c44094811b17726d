"""Operators that are replaced by their function bodies."""

from __future__ import annotations

import onnx_ir as ir

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import ExpandFunctions

LOSS = "(float[4,5] x, int64[4] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }"


def expand(text: str, opset: int) -> tuple[ir.Model, PassContext, bool]:
    made, context = model(text, opset), PassContext()
    return made, context, ExpandFunctions().run(made, context).modified


def ops(made: ir.Model) -> set[str]:
    return {n.op_type for n in made.graph}


def test_a_loss_is_a_gather_of_log_probabilities() -> None:
    made, context, modified = expand(LOSS, 17)
    assert modified
    assert {"LogSoftmax", "GatherElements", "ReduceMean"} <= ops(made)
    assert not {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"} & ops(made)
    assert not made.functions
    assert "ai.tilegraph.expanded" not in made.opset_imports
    assert [d.op for d in context.diagnostics.of("expand-functions")] == ["SoftmaxCrossEntropyLoss",
                                                                         "NegativeLogLikelihoodLoss"]
    assert not ExpandFunctions().run(made, PassContext()).modified


def test_default_attributes_are_the_operator_s() -> None:
    made, _, modified = expand("(float[4,6] x) => (float[4,3] y) { y = SwiGLU(x) }", 28)
    assert modified
    assert "SwiGLU" not in ops(made)


def test_inside_of_a_branch() -> None:
    made, _, modified = expand("""(bool c, float[4,5] x, int64[4] t) => (float y) {
        y = If (c) <then_branch = a () => (float u) { u = SoftmaxCrossEntropyLoss(x, t) },
                    else_branch = b () => (float v) { v = ReduceSum<keepdims = 0>(x) }> }""", 17)
    assert modified
    branch = next(n for n in made.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    assert "LogSoftmax" in {n.op_type for n in branch}


def test_unknown_element_types_are_refused() -> None:
    made = model(LOSS, 17)
    made.graph.inputs[0].type = None
    context = PassContext()
    assert not ExpandFunctions().run(made, context).modified
    (decision,) = context.diagnostics.of("expand-functions")
    assert "the element type of x is not known" in decision.reason


def test_an_opset_without_a_body_is_refused() -> None:
    context = PassContext()
    made = model("(float[4,5] x, int64[4] t) => (float[4] y) { y = NegativeLogLikelihoodLoss(x, t) }", 11)
    assert not ExpandFunctions().run(made, context).modified
    (decision,) = context.diagnostics.of("expand-functions")
    assert "no such operator at opset 11" in decision.reason
