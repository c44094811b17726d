"""Partitions: convex, acyclic together, and as large as convexity allows."""

from __future__ import annotations

import networkx as nx
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fusion.parse import model
from tilegraph.graph import GraphView, Reach
from tilegraph.partition import group
from tilegraph.partition.group import outputs_of

DOMAIN = "ours"


def graph_of(kinds: list[bool], reads: list[list[int]]) -> ir.Graph:
    """Node k reads the outputs of the nodes reads[k]; `kinds` says which are ours."""
    source = ir.Value(name="x")
    nodes: list[ir.Node] = []
    for k, (ours, before) in enumerate(zip(kinds, reads, strict=True)):
        inputs = [nodes[b].outputs[0] for b in before] or [source]
        nodes.append(ir.Node(DOMAIN if ours else "", f"Op{k}", inputs, name=f"n{k}"))
        nodes[-1].outputs[0].name = f"v{k}"
    last = [n.outputs[0] for n in nodes if not n.outputs[0].uses()]
    return ir.Graph([source], last, nodes=nodes, opset_imports={"": 20})


@st.composite
def graphs(draw: st.DrawFn) -> ir.Graph:
    n = draw(st.integers(1, 12))
    kinds = draw(st.lists(st.sampled_from((True, True, False)), min_size=n, max_size=n))
    reads = [draw(st.lists(st.integers(0, k - 1), max_size=3, unique=True)) if k else [] for k in range(n)]
    return graph_of(kinds, reads)


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_partitions_are_convex_acyclic_and_maximal(graph: ir.Graph) -> None:
    groups = group(graph, DOMAIN)
    ours = [n for n in graph if n.domain == DOMAIN]
    assert sorted((n.name for g in groups for n in g), key=str) == sorted((n.name for n in ours), key=str)
    view = GraphView(graph)
    of: dict[ir.Node, object] = {n: n for n in graph} | {n: g for g in groups for n in g}
    quotient = nx.DiGraph((of[a], of[b]) for a, b in view.graph.edges() if of[a] is not of[b])
    assert nx.is_directed_acyclic_graph(quotient)
    # Maximal: a group takes no neighbour of a later group (or part of it) alone without losing convexity.
    reach = Reach(view.nodes, view.graph.edges())
    for k, members in enumerate(groups):
        later = {n for g in groups[k + 1:] for n in g}
        near = {n for m in members for n in (*view.consumers(m), *view.producers(m))} & later
        assert not any(reach.is_convex([*members, n]) for n in near)
        assert reach.is_convex(members)
        assert [view.order[n] for n in members] == sorted(view.order[n] for n in members)
        reach.contract(members)


def test_a_foreign_node_between_keeps_two_partitions_apart() -> None:
    groups = group(graph_of([True, False, True], [[], [0], [1]]), DOMAIN)
    assert [[n.name for n in g] for g in groups] == [["n0"], ["n2"]]


def test_around_a_foreign_node_only_one_side_is_taken() -> None:
    """n0 feeds n3 directly and through the foreign n1: taking both would make a cycle with n1."""
    groups = group(graph_of([True, False, True, True], [[], [0], [0], [1, 2]]), DOMAIN)
    assert [[n.name for n in g] for g in groups] == [["n0", "n2"], ["n3"]]


def test_two_partitions_that_would_feed_each_other_are_not_both_made() -> None:
    """n0 -> n4 and n1 -> n5 are convex each; through the foreign n2 and n3 they would wait for each other."""
    graph = graph_of([True, True, False, False, True, True], [[], [], [0], [1], [0, 3], [1, 2]])
    assert [[n.name for n in g] for g in group(graph, DOMAIN)] == [["n0", "n4"], ["n1"], ["n5"]]


def test_unconnected_nodes_are_not_joined() -> None:
    assert [len(g) for g in group(graph_of([True, True], [[], []]), DOMAIN)] == [1, 1]


def test_outputs_are_what_something_else_reads() -> None:
    graph = graph_of([True, True, False, True], [[], [0], [1], [1]])
    (members, _) = groups = group(graph, DOMAIN) if len(group(graph, DOMAIN)) == 2 else [group(graph, DOMAIN)[0], ()]
    assert [n.name for n in members] == ["n0", "n1", "n3"]
    assert [v.name for v in outputs_of(groups[0], graph)] == ["v1", "v3"]


def test_a_body_that_captures_a_value_reads_it() -> None:
    graph = model("""(float[4] x, bool c) => (float[4] y) { a = Exp(x) b = Neg(a)
        y = If (c) <then_branch = t () => (float[4] p) { p = Relu(a) },
                    else_branch = e () => (float[4] q) { q = Relu(b) }> }""").graph
    a, b = list(graph)[:2]
    assert [v.name for v in outputs_of((a, b), graph)] == ["a", "b"]
    for node in (a, b):
        node.domain = DOMAIN
    assert [list(g) for g in group(graph, DOMAIN)] == [[a, b]]
