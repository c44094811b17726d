"""Partitions become EPContext nodes: before, expected, and a near-miss for each refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from emit_models import chain, chain_partitions, loaded, named, partition, spec, values
from onnx import TensorProto, helper, numpy_helper

from tilegraph.diagnostics import Diagnostics
from tilegraph.emit import emit
from tilegraph.errors import InputError, InternalError
from tilegraph.spec.artifact import Program, TensorSpec
from tilegraph.spec.dims import Dim

F = TensorProto.FLOAT


def info(name: str, shape: list[int | str], dtype: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def ops(graph: ir.Graph) -> list[str]:
    return [n.op_type for n in graph]


def checked(model: ir.Model) -> onnx.ModelProto:
    proto = ir.serde.serialize_model(model)
    onnx.checker.check_model(proto)
    return proto


def test_a_chain_with_two_partitions() -> None:
    model = chain()
    diagnostics = Diagnostics()
    first, second = emit(model, chain_partitions(model), diagnostics)
    assert ops(model.graph) == ["EPContext", "MatMul", "EPContext"]
    proto = checked(model)
    assert [list(n.input) for n in proto.graph.node] == [["x", "w"], ["m", "big"], ["t", "b"]]
    assert [list(n.output) for n in proto.graph.node] == [["m"], ["t"], ["y"]]
    assert {i.name for i in proto.graph.initializer} == {"w", "big", "b"}
    assert {(i.domain, i.version) for i in proto.opset_import} == {("", 17), ("com.microsoft", 1)}
    assert info("m", ["N", 64]) in proto.graph.value_info
    assert proto.graph.output[0] == info("y", ["N", 64])
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.graph.node[0].attribute}
    assert attributes["source"] == b"TileGraphExecutionProvider"
    assert attributes["partition_name"] == b"p0"
    assert (first.name, second.name) == ("p0", "p1")
    assert [d.subject for d in diagnostics.of("emit", taken=True)] == ["p0", "p1"]


def test_nothing_to_do_changes_nothing() -> None:
    model = chain()
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    assert emit(model, []) == ()
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before


def test_partitions_that_feed_each_other() -> None:
    model = chain()
    n, v = named(model), values(model)
    emit(model, [partition("late", [n["relu"]], [v["a"]], [v["y"]]),
                 partition("early", [n["add"]], [v["t"], v["b"]], [v["a"]])])
    proto = checked(model)
    assert [x.name for x in proto.graph.node] == ["mul", "matmul", "early", "late"]
    assert list(proto.graph.node[3].input) == ["a"]


def test_missing_dtype_and_shape_come_from_the_program() -> None:
    model = chain()
    parts = chain_partitions(model)
    middle = values(model)["m"]
    middle.type = None
    middle.shape = None
    emit(model, parts)
    assert info("m", ["N", 64]) in checked(model).graph.value_info


@pytest.mark.parametrize(("stated", "written"), [(None, "2*N+1"), ("rows", "rows")])
def test_unknown_dims_are_completed_and_known_ones_kept(stated: str | None, written: str) -> None:
    model = chain()
    parts = chain_partitions(model)
    values(model)["m"].shape = ir.Shape([stated, 64])
    out = TensorSpec("m", "float", (Dim.of("2*N+1"), Dim.of(64)))
    parts[0] = replace(parts[0], program=replace(parts[0].program, outputs=(out,)))
    emit(model, parts)
    assert info("m", [written, 64]) in checked(model).graph.value_info


def test_a_value_that_is_both_used_inside_and_returned() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"], "relu"),
                               helper.make_node("Neg", ["r"], ["y"], "neg"),
                               helper.make_node("Abs", ["r"], ["z"], "abs")], "g",
                              [info("x", ["N"])], [info("y", ["N"]), info("r", ["N"]), info("z", ["N"])])
    model = loaded(graph)
    n, v = named(model), values(model)
    emit(model, [partition("p", [n["relu"], n["neg"]], [v["x"]], [v["y"], v["r"]])])
    proto = checked(model)
    assert [o.name for o in proto.graph.output] == ["y", "r", "z"]
    assert [(x.op_type, list(x.input), list(x.output)) for x in proto.graph.node] == \
        [("EPContext", ["x"], ["y", "r"]), ("Abs", ["r"], ["z"])]


def test_consumers_before_the_last_node_still_come_after_the_context_node() -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"], "relu"),
                               helper.make_node("Sin", ["r"], ["s"], "sin"),
                               helper.make_node("Neg", ["r"], ["y"], "neg"),
                               helper.make_node("Add", ["s", "y"], ["z"], "add")], "g",
                              [info("x", ["N"])], [info("z", ["N"])],
                              value_info=[info(n, ["N"]) for n in ("r", "s", "y")])
    model = loaded(graph)
    n, v = named(model), values(model)
    emit(model, [partition("p", [n["neg"], n["relu"]], [v["x"]], [v["r"], v["y"]])])
    checked(model)
    assert ops(model.graph) == ["EPContext", "Sin", "Add"]


def conditional() -> ir.Model:
    """An If whose branches use the outer initializer w and the outer value h."""
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["h", "w"], [f"{op}_t"], op.lower()),
                                  helper.make_node("Relu", [f"{op}_t"], [f"{op}_r"], f"{op.lower()}_relu")],
                                 op, [], [info(f"{op}_r", ["N", 4])], value_info=[info(f"{op}_t", ["N", 4])])

    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["h"], "neg"),
         helper.make_node("If", ["c"], ["y"], "if", then_branch=branch("Mul"), else_branch=branch("Add"))],
        "g", [info("x", ["N", 4]), info("c", [], TensorProto.BOOL)], [info("y", ["N", 4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")], value_info=[info("h", ["N", 4])])
    return loaded(graph)


def test_partitions_in_the_bodies_of_an_if() -> None:
    model = conditional()
    n, v = named(model), values(model)
    emit(model, [partition(op, [n[op.lower()], n[f"{op.lower()}_relu"]], [v["h"], v["w"]], [v[f"{op}_r"]])
                 for op in ("Mul", "Add")] + [partition("outer", [n["neg"]], [v["x"]], [v["h"]])])
    proto = checked(model)
    assert [x.op_type for x in proto.graph.node] == ["EPContext", "If"]
    for attribute in proto.graph.node[1].attribute:
        (inner,) = attribute.g.node
        assert (inner.op_type, list(inner.input)) == ("EPContext", ["h", "w"])
        assert [o.name for o in attribute.g.output] == list(inner.output)
    assert [i.name for i in proto.graph.initializer] == ["w"]


def test_a_value_that_only_a_body_uses_must_be_an_output() -> None:
    model = conditional()
    n, v = named(model), values(model)
    extra = partition("p", [n["neg"]], [v["x"]], [v["h"]])
    none = Program(extra.program.inputs, (), Dim.of(0), ())
    with pytest.raises(InternalError, match="no nodes or no outputs"):
        emit(model, [replace(extra, outputs=(), program=none)])
    emit(model, [extra])


def test_a_whole_if_in_a_partition() -> None:
    model = conditional()
    n, v = named(model), values(model)
    emit(model, [partition("all", [n["neg"], n["if"]], [v["x"], v["c"]], [v["y"]])])
    assert ops(model.graph) == ["EPContext"]
    assert len(checked(model).graph.initializer) == 0  # w was baked in, and nobody else reads it


def test_what_only_the_partition_needed_goes() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"], "shape"),
             helper.make_node("Gather", ["s", "zero"], ["n"], "gather"),
             helper.make_node("Concat", ["n", "tail"], ["to"], "concat", axis=0),
             helper.make_node("Reshape", ["x", "to"], ["r"], "reshape"),
             helper.make_node("Mul", ["r", "half"], ["y"], "mul"),
             helper.make_node("Cast", ["n"], ["count"], "cast", to=TensorProto.FLOAT)]
    constants = {"zero": np.array([0]), "tail": np.array([16]), "half": np.array(0.5, np.float32)}

    def build(outputs: list[onnx.ValueInfoProto]) -> ir.Model:
        kept = nodes if outputs[-1].name == "count" else nodes[:-1]
        graph = helper.make_graph(kept, "g", [info("x", ["N", 4, 4])], outputs,
                                  [numpy_helper.from_array(a, k) for k, a in constants.items()],
                                  value_info=[info("r", ["N", 16])])
        return loaded(graph)

    for outputs, left, initializers in (
            ([info("y", ["N", 16])], ["EPContext"], set()),
            ([info("y", ["N", 16]), info("n", [1], TensorProto.INT64)], ["Shape", "Gather", "EPContext"], {"zero"}),
            ([info("y", ["N", 16]), info("count", [1])], ["Shape", "Gather", "Cast", "EPContext"], {"zero"})):
        model = build(outputs)
        n, v = named(model), values(model)
        emit(model, [partition("p", [n["reshape"], n["mul"]], [v["x"]], [v["y"]])])
        assert sorted(ops(model.graph)) == sorted(left)
        assert {i.name for i in checked(model).graph.initializer} == initializers


def test_a_partition_that_another_one_only_read_a_shape_from_stays() -> None:
    """`late` derives its shape by itself, so that nobody reads `early` once both are replaced, in either order."""
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"], "relu"),
                               helper.make_node("Shape", ["r"], ["s"], "shape"),
                               helper.make_node("Expand", ["x", "s"], ["e"], "expand"),
                               helper.make_node("Neg", ["e"], ["y"], "neg")], "g", [info("x", ["N"])],
                              [info("y", ["N"])], value_info=[info("r", ["N"]), info("e", ["N"])])
    for order in (1, -1):
        model = loaded(graph)
        n, v = named(model), values(model)
        emit(model, [partition("early", [n["relu"]], [v["x"]], [v["r"]]),
                     partition("late", [n["expand"], n["neg"]], [v["x"]], [v["y"]])][::order])
        checked(model)
        assert sorted(x.name or "" for x in model.graph) == ["early", "late"]


def test_initializers_that_nobody_reads_go() -> None:
    """Fusion bakes constants into composites and leaves them; inputs and outputs that have a default value stay."""
    constants = {name: np.arange(4, dtype=np.float32) for name in ("unused", "default", "returned")}
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "g",
                              [info("x", ["N"]), info("default", [4])], [info("y", ["N"]), info("returned", [4])],
                              [numpy_helper.from_array(a, k) for k, a in constants.items()])
    model = loaded(graph)
    emit(model, [partition("p", [named(model)["relu"]], [values(model)["x"]], [values(model)["y"]])])
    assert {i.name for i in checked(model).graph.initializer} == {"default", "returned"}


def test_composites_without_a_call_lose_their_body() -> None:
    body = helper.make_function("ai.tilegraph", "Fused", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])],
                                [helper.make_opsetid("", 17)])
    graph = helper.make_graph([helper.make_node("Fused", ["x"], ["m"], "one", domain="ai.tilegraph"),
                               helper.make_node("Fused", ["m"], ["y"], "two", domain="ai.tilegraph")], "g",
                              [info("x", ["N"])], [info("y", ["N"])], value_info=[info("m", ["N"])])
    for count in (1, 2):
        model = loaded(graph, [body])
        n, v = named(model), values(model)
        emit(model, [partition("one", [n["one"]], [v["x"]], [v["m"]]),
                     partition("two", [n["two"]], [v["m"]], [v["y"]])][:count])
        proto = checked(model)
        assert len(proto.functions) == 2 - count
        assert ("ai.tilegraph" in {i.domain for i in proto.opset_import}) == (count == 1)


def test_another_providers_context_node_is_left_alone() -> None:
    graph = helper.make_graph([helper.make_node("EPContext", ["x"], ["m"], "theirs", domain="com.microsoft",
                                                source="OtherExecutionProvider", ep_cache_context="a.bin"),
                               helper.make_node("Relu", ["m"], ["y"], "relu")], "g",
                              [info("x", ["N"])], [info("y", ["N"])], value_info=[info("m", ["N"])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                    helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    theirs = ir.serde.deserialize_model(model)
    n, v = named(theirs), values(theirs)
    emit(theirs, [partition("p", [n["relu"]], [v["m"]], [v["y"]])])
    assert [x.name for x in theirs.graph] == ["theirs", "p"]
    with pytest.raises(InputError, match="node p was compiled by tilegraph already"):
        emit(theirs, [])


def broken(kind: str) -> tuple[ir.Model, list[object]]:
    model = chain()
    n, v = named(model), values(model)
    one, two = chain_partitions(model)
    good = one.program
    wrong = {
        "same name": [one, replace(two, name="p0")],
        "shared node": [one, partition("p1", [n["mul"]], [v["x"], v["w"]], [v["m"]])],
        "own input": [partition("p", [n["add"], n["relu"]], [v["t"], v["b"], v["a"]], [v["y"]])],
        "foreign output": [partition("p", [n["add"]], [v["t"], v["b"]], [v["m"]])],
        "lost value": [partition("p", [n["matmul"], n["add"]], [v["m"], v["big"], v["b"]], [v["t"]])],
        "lost output": [partition("p", [n["add"], n["relu"]], [v["t"], v["b"]], [v["a"]])],
        "twice": [partition("p", [n["mul"]], [v["x"], v["w"]], [v["m"], v["m"]])],
        "fewer specs": [replace(one, program=replace(good, inputs=good.inputs[:1]))],
        "dtype": [replace(one, program=replace(good, outputs=(replace(good.outputs[0], dtype="float16"),)))],
        "odd dtype": [replace(one, program=replace(good, outputs=(replace(good.outputs[0], dtype="f32"),)))],
        "rank": [replace(one, program=replace(good, outputs=(replace(good.outputs[0], shape=(Dim.of(64),)),)))],
        "constant": [replace(one, program=replace(good, inputs=(spec(v["x"], constant=True), good.inputs[1])))],
    }
    return model, list(wrong[kind])


@pytest.mark.parametrize(("kind", "said"), [
    ("same name", "two partitions are named p0"),
    ("shared node", "node mul is in the partitions p0 and p1"),
    ("own input", "its input a is made by its own nodes"),
    ("foreign output", "its output m is not made by its nodes"),
    ("lost value", "a is used outside"),
    ("lost output", "y is used outside"),
    ("twice", "lists an output twice"),
    ("fewer specs", "has 2 inputs, its program 1"),
    ("dtype", "output m: float in the model, float16 in the program"),
    ("odd dtype", "'f32' is not a dtype"),
    ("rank", "rank 2 in the model, 1 in the program"),
    ("constant", "input x: constant in the program"),
])
def test_contradictions_are_found_before_anything_changes(kind: str, said: str) -> None:
    model, parts = broken(kind)
    before = ir.serde.serialize_model(model)
    with pytest.raises(InternalError, match=said):
        emit(model, parts)  # type: ignore[arg-type]
    assert ir.serde.serialize_model(model) == before


def test_a_partition_that_is_not_convex() -> None:
    model = chain()
    n, v = named(model), values(model)
    with pytest.raises(InternalError, match="not convex"):
        emit(model, [partition("p", [n["mul"], n["add"], n["relu"]], [v["x"], v["w"], v["t"], v["b"]],
                               [v["m"], v["y"]])])


def test_an_initializer_that_callers_may_override_is_not_constant() -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"], "mul")], "g",
                              [info("x", ["N", 4]), info("w", [4])], [info("y", ["N", 4])], [weight])
    for constant in (True, False):
        model = loaded(graph)
        n, v = named(model), values(model)
        program = Program((spec(v["x"]), spec(v["w"], constant)), (spec(v["y"]),), Dim.of(0), ())
        part = partition("p", [n["mul"]], [v["x"], v["w"]], [v["y"]], program)
        if constant:
            with pytest.raises(InternalError, match="nobody can override"):
                emit(model, [part])
        else:
            emit(model, [part])
            assert [i.name for i in checked(model).graph.input] == ["x", "w"]


def test_bodies_of_functions_are_not_graphs_of_the_model() -> None:
    body = helper.make_function("ai.tilegraph", "Fused", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"], "in")],
                                [helper.make_opsetid("", 17)])
    graph = helper.make_graph([helper.make_node("Fused", ["x"], ["y"], "call", domain="ai.tilegraph")], "g",
                              [info("x", ["N"])], [info("y", ["N"])])
    model = loaded(graph, [body])
    (node,) = next(iter(model.functions.values()))
    program = Program((TensorSpec("a", "float", (Dim.of("N"),)),), (TensorSpec("b", "float", (Dim.of("N"),)),),
                      Dim.of(0), ())
    with pytest.raises(InternalError, match="not all in one graph"):
        emit(model, [partition("p", [node], list(node.inputs), list(node.outputs), program)])  # type: ignore[arg-type]
