"""Opset conversion: what changes, what is refused, and that refusals change nothing. Numerics: tests/numeric."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from io_models import parse

from tilegraph.diagnostics import Diagnostics
from tilegraph.io import load, to_opset
from tilegraph.io.convert import _history, _same_form
from tilegraph.io.convert_ops import ADAPTERS, REFUSED
from tilegraph.passes.invariants import check_model


def converted(text: str, version: int = 18) -> ir.Model:
    model = load(parse(text))
    assert to_opset(model, version)
    check_model(model)
    return model


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph if n.op_type != "Constant"]


def kept(text: str, part: str, version: int = 18) -> None:
    model, log = load(parse(text)), Diagnostics()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not to_opset(model, version, log)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    (decision,) = log
    assert not decision.taken
    assert decision.stage == "opset"
    assert part in decision.reason


def model_text(body: str, opset: int, inputs: str = "float[2, 3, 4] x", outputs: str = "float[2, 3, 4] y") -> str:
    return f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'


def test_operators_of_onnx_runtime() -> None:
    norm = "y = LayerNormalization(x, s)"
    assert ops(converted(model_text(norm, 11, "float[2, 3, 4] x, float[4] s"))) == ["LayerNormalization"]
    kept(model_text(norm, 11, "float[2, 3, 4] x, float16[4] s", "float16[2, 3, 4] y"), "another element type")
    kept(model_text("y = Affine(x)", 9), "ONNX Runtime's own")


def test_every_definition_is_covered() -> None:
    """Each redefinition of an op is recognised as compatible, adapted, or refused; none slips through unnoticed."""
    unknown = {(op, v) for op, versions in _history().items() for v in versions
               if v > max(versions[0], 7) and (op, v) not in ADAPTERS and (op, v) not in REFUSED
               and not _same_form(op, v)}
    assert unknown == set()
    listed = {(op, v) for op, versions in _history().items() for v in versions}
    assert listed.issuperset(ADAPTERS)
    assert listed.issuperset(REFUSED)


def test_newer_models_stay() -> None:
    model = load(parse(model_text("y = Relu(x)", 20)))
    assert not to_opset(model, 18)
    assert model.graph.opset_imports[""] == 20


def test_unknown_versions_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="unknown"):
        to_opset(load(parse(model_text("y = Relu(x)", 17))), 99)


def test_attributes_become_inputs() -> None:
    model = converted(model_text(
        "a = Unsqueeze <axes = [0]> (x)  b = Squeeze <axes = [0]> (a)  c = ReduceSum <axes = [1]> (b) "
        "d = ReduceMean <axes = [2]> (c)  y = Add(d, x)", 11))
    for node in model.graph:
        assert "axes" not in node.attributes
        if node.op_type in ("Unsqueeze", "Squeeze", "ReduceSum", "ReduceMean"):
            assert len(node.inputs) == 2


def test_softmax_over_the_last_axis_only_says_so() -> None:
    model = converted(model_text("y = Softmax <axis = 2> (x)", 11))
    assert ops(model) == ["Softmax"]
    assert model.graph[0].attributes["axis"].as_int() == -1


def test_softmax_over_flattened_axes_keeps_its_meaning_and_names() -> None:
    model = converted(model_text("y = Softmax(x)", 11))  # the default axis was 1
    assert ops(model) == ["Shape", "Flatten", "Softmax", "Reshape"]
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert str(model.graph.outputs[0].shape) == "[2,3,4]"


def test_upsample_becomes_resize() -> None:
    body = "y = Upsample <mode = \"nearest\", scales = [1.0, 1.0, 2.0, 2.0]> (x)"
    model = converted(model_text(body, 7, "float[1, 1, 2, 2] x", "float[1, 1, 4, 4] y"))
    (node,) = [n for n in model.graph if n.op_type != "Constant"]
    assert node.op_type == "Resize"
    assert node.attributes["coordinate_transformation_mode"].as_string() == "asymmetric"
    assert node.inputs[1] is not None
    assert str(node.inputs[1].shape) == "[0]"  # needed in opsets 11 and 12
    assert node.inputs[2] is not None


def test_subgraphs_are_converted_too() -> None:
    model = converted("""
        <ir_version: 8, opset_import: ["" : 11]>
        g (float[1, 4] x, bool c) => (float[4] y) {
            y = If (c) <then_branch = t () => (float[4] r) { r = Squeeze <axes = [0]> (x) },
                        else_branch = e () => (float[4] s) { s = Reshape(x, n) }>
        }""".replace("(float[1, 4] x, bool c)", "(float[1, 4] x, bool c, int64[1] n)"))
    (squeeze,) = [n for n in model.graph.all_nodes() if n.op_type == "Squeeze"]
    assert len(squeeze.inputs) == 2


def test_functions_are_converted_with_the_model() -> None:
    model = load(parse("""
        <ir_version: 8, opset_import: ["" : 11, "ai.tilegraph" : 1]>
        g (float[1, 4] x) => (float[4] y) { y = ai.tilegraph.fused(x) }
        <domain: "ai.tilegraph", opset_import: ["" : 11]> fused (v) => (r) { r = Squeeze <axes = [0]> (v) }"""))
    assert to_opset(model, 18)
    (function,) = model.functions.values()
    assert function.opset_imports[""] == 18
    assert [n.op_type for n in function] == ["Constant", "Squeeze"]


@pytest.mark.parametrize(("text", "part", "version"), [
    (model_text("s = Constant <value: tensor = float[3] {1.0, 0.5, 1.0}> ()  y = Resize(x, s)", 10), "shrinks", 18),
    (model_text("y, m = Dropout(x)", 7, outputs="float[2, 3, 4] y, float[2, 3, 4] m"), "mask output", 18),
    (model_text("y = AveragePool <kernel_shape = [2], ceil_mode = 1> (x)", 11, outputs="float[2, 3, 3] y"),
     "ceil_mode", 22),
    (model_text("y = GroupNormalization <num_groups = 2> (x, s, b)", 18,
                "float[n, c, 4] x, float[2] s, float[2] b", "float[n, c, 4] y"), "channels are unknown", 21),
])
def test_refusals_change_nothing(text: str, part: str, version: int) -> None:
    kept(text, part, version)


def test_the_ir_version_follows() -> None:
    model = converted(model_text("y = Relu(x)", 17), 23)
    assert model.ir_version >= 11
    onnx.checker.check_model(ir.to_proto(model))
