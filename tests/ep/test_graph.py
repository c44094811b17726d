"""Nodes in a graph: constants, shared and unread values, neighbours, and the bodies of If and Loop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tilegraph.spec.dims import Dim

Serve = Callable[..., Any]
InvalidArgument = ort.capi.onnxruntime_pybind11_state.InvalidArgument


def test_constants(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    total = Dim.of("n") * 3
    spec = ep.program([ep.tensor("x", "float", "n", 3), ep.tensor("w", "float", 3, constant=True)],
                      [ep.tensor("y", "float", "n", 3)],
                      [ep.call("scale", [ep.source(0), ep.source(1), ep.result(0)], [total, 3], total)])
    w = np.array([2, 3, 5], np.float32)
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}, initializers={"w": w}))
    for n in (1, 4, 2):
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * w)


def test_constants_are_looked_at_once(tmp_path: Path, add_one: Path) -> None:
    """The log says which inputs count as constants: the cost of a run must not grow with them."""
    weights = [ep.tensor(f"w{i}", "float", 2, constant=True) for i in range(7)]
    spec = ep.program([ep.tensor("x", "float", 3), *weights], [ep.tensor("y", "float", 3)],
                      [ep.call("add_one", [ep.source(0), ep.result(0)], [3], 3)])
    values = {w.name: np.zeros(2, np.float32) for w in weights}
    path = ep.Artifact(add_one, {"p": spec}, initializers=values).write(tmp_path)
    code = f"""
import onnxruntime, tilegraph.runtime as rt
onnxruntime.set_default_logger_severity(1)
rt.session({str(path)!r}, threads=1)
"""
    log = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert "1 compiled partitions ready, with 7 constant inputs (0 bytes copied), split into at most 1 tasks" in log


def test_a_constant_that_the_caller_may_replace_is_looked_at_each_time(serve: Serve,
                                                                      compile_kernels: Callable[..., Path]) -> None:
    """An initializer that is a graph input too is only a default value."""
    spec = ep.program([ep.tensor("x", "float", 3), ep.tensor("w", "float", 3, constant=True)],
                      [ep.tensor("y", "float", 3)],
                      [ep.call("scale", [ep.source(0), ep.source(1), ep.result(0)], [3, 3], 3)])
    graph = [helper.make_tensor_value_info(n, 1, [3]) for n in ("x", "w")]
    w = np.array([2, 3, 5], np.float32)
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}, initializers={"w": w}, graph_inputs=graph))
    x = np.ones(3, np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], w)
    np.testing.assert_array_equal(session.run(None, {"x": x, "w": w * 10})[0], w * 10)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], w)


def test_a_constant_of_another_shape_is_refused(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    spec = ep.program([ep.tensor("x", "float", 3), ep.tensor("w", "float", 3, constant=True)],
                      [ep.tensor("y", "float", 3)],
                      [ep.call("scale", [ep.source(0), ep.source(1), ep.result(0)], [3, 3], 3)])
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}, initializers={"w": np.zeros(4, np.float32)}))
    with pytest.raises(InvalidArgument, match="input 1 'w' has 4 in dim 0, expected 3"):
        session.run(None, {"x": np.zeros(3, np.float32)})


def test_the_same_value_for_two_inputs(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """ONNX Runtime passes it once."""
    spec = ep.program([ep.tensor("x", "float", 3), ep.tensor("w", "float", 3), ep.tensor("z", "float", 3)],
                      [ep.tensor("y", "float", 3)],
                      [ep.call("scale", [ep.source(0), ep.source(2), ep.result(0)], [3, 3], 3)])
    node = ep.Node("p", inputs=["x", "x", "z"])
    session = serve(ep.Artifact(compile_kernels(ep.SCALE), {"p": spec}, nodes=[node]))
    x, z = np.array([1, 2, 3], np.float32), np.array([5, 7, 11], np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "z": z})[0], x * z)


def test_outputs_that_nobody_reads(serve: Serve, add_one: Path) -> None:
    """ONNX Runtime drops them from the fused node; the kernels still write them."""
    n = Dim.symbol("n")
    outputs = [ep.tensor("unused", "float", n), ep.tensor("y", "float", n), ep.tensor("unused2", "float", n)]
    spec = ep.program([ep.tensor("x", "float", n)], outputs,
                      [ep.call("add_one", [ep.source(0), ep.result(0)], [n], n),
                       ep.call("add_one", [ep.result(0), ep.result(2)], [n], n),
                       ep.call("add_one", [ep.result(2), ep.result(1)], [n], n)])
    session = serve(ep.Artifact(add_one, {"p": spec}, graph_outputs=[helper.make_tensor_value_info("y", 1, ["n"])]))
    for n_value in (3, 0, 100):
        x = np.arange(n_value, dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 3)


def test_nodes_that_follow_each_other(serve: Serve, add_one: Path) -> None:
    nodes = [ep.Node("p", ["x"], ["a"], "first"), ep.Node("p", ["a"], ["b"], "second"),
             ep.Node("q", ["b"], ["y"], "third")]
    programs = {"p": ep.add_one_program("n"), "q": ep.chain_program("n", 0)}
    session = serve(ep.Artifact(add_one, programs, nodes=nodes))
    x = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + 4)


def test_between_nodes_of_onnx_runtime(serve: Serve, add_one: Path) -> None:
    def around(model: onnx.ModelProto) -> None:
        graph = model.graph
        graph.node[0].input[0], graph.node[0].output[0] = "a", "b"
        graph.node.insert(0, helper.make_node("Mul", ["x", "x"], ["a"]))
        graph.node.append(helper.make_node("Neg", ["b"], ["y"]))
        graph.value_info.extend([helper.make_tensor_value_info(n, 1, ["n"]) for n in "ab"])

    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program("n")}, edit_model=around))
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -(x * x + 1))


@pytest.mark.parametrize("embed", [False, True])
def test_in_both_branches_of_an_if(serve: Serve, add_one: Path, embed: bool) -> None:
    """Nodes in subgraphs read outer values and weights."""
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program(4), "q": ep.chain_program(4, 0)}, embed=embed)

    def into_branches(model: onnx.ModelProto) -> None:
        text = json.dumps(artifact.manifest())
        x, y = (helper.make_tensor_value_info(n, 1, [4]) for n in "xy")
        branches = []
        for partition, value in (("p", "x"), ("q", "w")):
            nodes = artifact.context_nodes([ep.Node(partition, [value], [f"y_{partition}"], f"node_{partition}")], text)
            result = helper.make_tensor_value_info(f"y_{partition}", 1, [4])
            branches.append(helper.make_graph(nodes, partition, [], [result]))
        choose = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
        weights = onnx.numpy_helper.from_array(np.array([10, 20, 30, 40], np.float32), "w")
        model.graph.CopyFrom(helper.make_graph(
            [choose], "g", [helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []), x], [y], [weights]))

    artifact.edit_model = into_branches
    session = serve(artifact)
    x = np.arange(4, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"c": np.array(True), "x": x})[0], x + 1)
        np.testing.assert_array_equal(session.run(None, {"c": np.array(False), "x": x})[0], [12, 22, 32, 42])


def test_in_the_body_of_a_loop(serve: Serve, add_one: Path) -> None:
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program("n")})

    def into_body(model: onnx.ModelProto) -> None:
        nodes = artifact.context_nodes([ep.Node("p", ["v"], ["v_next"])], json.dumps(artifact.manifest()))
        state = [helper.make_tensor_value_info(n, 1, ["n"]) for n in ("v", "v_next")]
        flags = [helper.make_tensor_value_info(n, onnx.TensorProto.BOOL, []) for n in ("go", "go_next")]
        nodes.append(helper.make_node("Identity", ["go"], ["go_next"]))
        step = helper.make_tensor_value_info("i", onnx.TensorProto.INT64, [])
        body = helper.make_graph(nodes, "body", [step, flags[0], state[0]], [flags[1], state[1]])
        loop = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
        model.graph.CopyFrom(helper.make_graph(
            [loop], "g", [helper.make_tensor_value_info("times", onnx.TensorProto.INT64, []),
                          helper.make_tensor_value_info("x", 1, ["n"])],
            [helper.make_tensor_value_info("y", 1, ["n"])]))

    artifact.edit_model = into_body
    session = serve(artifact)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"times": np.array(5), "x": x})[0], x + 5)
