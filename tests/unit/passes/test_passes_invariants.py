"""`check_model` finds each kind of damage, and accepts sound models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tilegraph.errors import InternalError
from tilegraph.io import load
from tilegraph.passes.invariants import check_model


def sound() -> ir.Model:
    return load(onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x, bool c) => (float[4] y)
        <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
            a = Add(x, w)
            b = Relu(a)
            y = If (c) <then_branch = t () => (float[4] r) { r = Neg(b) },
                        else_branch = e () => (float[4] s) { s = Abs(a) }>
        }"""))


def test_a_sound_model_passes() -> None:
    check_model(sound())


def wrong_order(model: ir.Model) -> None:
    first, second = model.graph[0], model.graph[1]
    model.graph.remove(first)
    model.graph.insert_after(second, first)


def foreign_input(model: ir.Model) -> None:
    model.graph[1].replace_input_with(0, ir.Value(name="stranger"))


def same_name(model: ir.Model) -> None:
    model.graph[1].outputs[0].name = "a"


def same_node_name(model: ir.Model) -> None:
    model.graph[1].name = model.graph[0].name


def node_name_of_a_branch(model: ir.Model) -> None:
    next(n for n in model.graph.all_nodes() if n.op_type == "Neg").name = model.graph[0].name


def no_name(model: ir.Model) -> None:
    model.graph[0].name = ""


def foreign_output(model: ir.Model) -> None:
    model.graph.outputs[0] = ir.Value(name="y")


def captured_output(model: ir.Model) -> None:
    branch = model.graph[2].attributes["then_branch"].as_graph()
    branch.outputs[0] = model.graph[0].outputs[0]


def no_outputs(model: ir.Model) -> None:
    model.graph.outputs.clear()


def wrong_constant_shape(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros(5, np.float32), name="w")


def wrong_constant_type(model: ir.Model) -> None:
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros(4, np.float64), name="w")


def unknown_domain(model: ir.Model) -> None:
    model.graph[0].domain = "elsewhere"


def checker_only(model: ir.Model) -> None:
    model.graph[1].attributes["alpha"] = ir.AttrFloat32("alpha", 1.0)


def wrong_type(model: ir.Model) -> None:
    model.graph[1].outputs[0].type = ir.TensorType(ir.DataType.INT64)


def impossible_shape(model: ir.Model) -> None:
    model.graph[0].outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    model.graph[0].outputs[0].shape = ir.Shape([5])


@pytest.mark.parametrize(("damage", "part"), [
    (wrong_order, "input 0 'a' is not defined before it"),
    (foreign_input, "input 0 'stranger' is not defined"),
    (same_name, "'a' is assigned twice"),
    (same_node_name, "name is used twice"),
    (node_name_of_a_branch, "name is used twice"),
    (no_name, "has no name"),
    (foreign_output, "output 'y'"),
    (captured_output, "output 'a'"),
    (no_outputs, "no outputs"),
    (wrong_constant_shape, "'w' has shape [5]"),
    (wrong_constant_type, "'w' is DOUBLE"),
    (unknown_domain, "'elsewhere'"),
    (wrong_type, "onnx's inference"),
    (impossible_shape, "onnx's inference"),
    (checker_only, "onnx's checker: Unrecognized attribute: alpha"),
])
def test_damage_is_found_and_named(damage: Callable[[ir.Model], None], part: str) -> None:
    model = sound()
    damage(model)
    with pytest.raises(InternalError) as caught:
        check_model(model)
    assert part in str(caught.value)


def test_the_model_is_not_changed() -> None:
    model = load(onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[512] x) => (float[512] y) { y = Add(x, x) }"""))
    value = ir.Value(name="big", const_value=ir.tensor(np.ones(512, np.float32), name="big"),
                     shape=ir.Shape([512]), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.register_initializer(value)
    model.graph[0].replace_input_with(1, value)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    check_model(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
