"""Steps of optimizers (ai.onnx.preview.training) become standard operators; near misses are refused with the reason."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import ExpandFunctions

DOMAIN = "ai.onnx.preview.training"


def with_step(op: str, inputs: str, outputs: int, opset: int = 17, dtype: str = "float", other: str = "",
              **attributes: Any) -> ir.Model:
    """A model of one step, whose inputs are R, T and `inputs`; one of them may have `other` as its dtype."""
    kinds = dict.fromkeys(inputs.split(), dtype)
    if other:
        kinds[inputs.split()[-1]] = other
    text = ", ".join(f"{kind}[4,5] {n}" for n, kind in kinds.items())
    made = model(f"({dtype} R, int64 T, {text}) => ({dtype}[4,5] y0) {{ y0 = Add(R, {inputs.split()[0]}) }}", opset)
    (old,) = made.graph
    values = {v.name: v for v in made.graph.inputs}
    node = ir.node(op, [values[n] for n in ("R", "T", *inputs.split())], attributes, domain=DOMAIN, num_outputs=outputs,
                   name="step")
    for k, value in enumerate(node.outputs):
        value.name = f"out{k}"
    made.graph.outputs[:] = node.outputs
    made.graph.remove(old)
    made.graph.append(node)
    made.graph.opset_imports[DOMAIN] = 1
    return made


ADAM = {"alpha": 0.9, "beta": 0.99}


def test_two_parameters_are_pointwise_nodes() -> None:
    made = with_step("Adam", "X0 X1 G0 G1 V0 V1 H0 H1", 6, **ADAM)
    context = PassContext()
    assert ExpandFunctions().run(made, context).modified
    ops = [n.op_type for n in made.graph]
    assert ops.count("Sqrt") == 3
    assert ops.count("Where") == 1  # the rate is computed once
    assert all(n.domain == "" for n in made.graph)
    assert DOMAIN not in made.graph.opset_imports
    assert [v.name for v in made.graph.outputs] == [f"out{k}" for k in range(6)]
    assert [d.op for d in context.diagnostics.of("expand-functions")] == ["Adam"]


@pytest.mark.parametrize(("made", "reason"), [
    (with_step("Adam", "X0 G0 V0", 3, **ADAM), "5 inputs and 3 outputs are not those of whole parameters"),
    (with_step("Adagrad", "X0 G0 H0", 3), "5 inputs and 3 outputs are not those of whole parameters"),
    (with_step("Adagrad", "X0 G0 H0", 2, opset=8), "needs opset 9, the model has 8"),
    (with_step("Adagrad", "X0 G0 H0", 2, other="double"), "element types of parameter 0 are not known to be all float"),
    (with_step("Momentum", "X0 G0 V0", 2, alpha=0.9, beta=0.5, norm_coefficient=0.0, mode="heavy"), "mode 'heavy'"),
    (with_step("Gradient", "X0", 1, xs=["X0"], y="X0"), "ONNX gives Gradient no meaning that one node has"),
])
def test_refused(made: ir.Model, reason: str) -> None:
    context = PassContext()
    assert not ExpandFunctions().run(made, context).modified
    (decision,) = context.diagnostics.of("expand-functions")
    assert reason in decision.reason
    assert DOMAIN in made.graph.opset_imports
