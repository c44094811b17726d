"""The networkx view of a graph, bodies of If and Loop included."""

from __future__ import annotations

import networkx as nx
import onnx_ir as ir
import pytest

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView, all_graphs, captured_values

BRANCHES = """(float[4] x, bool c) => (float[4] y) {
    a = Exp(x)
    b = Neg(x)
    r = If (c) <
        then_branch = t () => (float[4] p) { q = Add(a, x) p = Relu(q) },
        else_branch = e () => (float[4] p2) { p2 = If (c) <
            then_branch = u () => (float[4] s) { s = Identity(b) },
            else_branch = v () => (float[4] w) { w = Identity(x) }> }>
    y = Add(r, a)
}"""

LOOP = """(float[4] x, int64 n, bool c) => (float[4] y) {
    k = Exp(x)
    y = Loop (n, c, x) <body = b (int64 i, bool ci, float[4] s) => (bool co, float[4] so) {
        co = Identity(ci) so = Add(s, k) }>
}"""


def named(graph: ir.Graph) -> dict[str, ir.Node]:
    return {str(node.outputs[0].name): node for node in graph}


def test_captured_values_are_edges() -> None:
    graph = model(BRANCHES).graph
    nodes, view = named(graph), GraphView(graph)
    assert {v.name for v in captured_values(nodes["r"])} == {"a", "x", "b", "c"}
    assert view.producers(nodes["r"]) == [nodes["a"], nodes["b"]]
    assert view.consumers(nodes["a"]) == [nodes["r"], nodes["y"]]
    assert view.users(nodes["b"].outputs[0]) == [nodes["r"]]
    # A graph input is no node, but its readers are known, the body's holder included.
    assert nodes["r"] in view.users(graph.inputs[0])


def test_a_value_read_twice_is_two_edges() -> None:
    graph = model("(float[4] x) => (float[4] y) { a = Exp(x) y = Mul(a, a) }").graph
    nodes, view = named(graph), GraphView(graph)
    assert view.graph.number_of_edges(nodes["a"], nodes["y"]) == 2
    assert view.consumers(nodes["a"]) == [nodes["y"]]


def test_loop_bodies_capture_too_and_all_graphs_finds_them() -> None:
    graph = model(LOOP).graph
    nodes = named(graph)
    assert {v.name for v in captured_values(nodes["y"])} == {"k"}
    assert [g.name for g in all_graphs(graph)] == ["g", "b"]
    assert [g.name for g in all_graphs(model(BRANCHES).graph)] == ["g", "t", "e", "u", "v"]


def test_order_is_topological_and_the_view_is_frozen() -> None:
    graph = model(BRANCHES).graph
    view = GraphView(graph)
    assert all(view.order[a] < view.order[b] for a, b in view.graph.edges())
    with pytest.raises(nx.NetworkXError):
        view.graph.add_node("new")
