"""Convexity and contraction against brute force on random graphs."""

from __future__ import annotations

import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from tilegraph.graph import Reach

Edges = list[tuple[int, int]]


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, Edges]:
    """Nodes 0 .. n-1 in topological order, and edges between them."""
    n = draw(st.integers(1, 10))
    pairs = list(itertools.combinations(range(n), 2))
    return n, draw(st.lists(st.sampled_from(pairs), max_size=20, unique=True)) if pairs else []


def is_convex(graph: nx.DiGraph, members: set[object]) -> bool:
    """No node outside is on a path between members."""
    for outside in set(graph) - members:
        if nx.ancestors(graph, outside) & members and nx.descendants(graph, outside) & members:
            return False
    return True


def as_graph(n: int, edges: Edges) -> nx.DiGraph:
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(n))
    return graph


@settings(max_examples=200, deadline=None)
@given(dags(), st.data())
def test_convexity_is_that_of_all_paths(dag: tuple[int, Edges], data: st.DataObject) -> None:
    n, edges = dag
    graph, reach = as_graph(n, edges), Reach(range(n), edges)
    members = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    assert reach.is_convex(members) == is_convex(graph, set(members))
    for a, b in itertools.product(range(n), repeat=2):
        assert reach.reaches(a, b) == (a == b or nx.has_path(graph, a, b))


@settings(max_examples=300, deadline=None)
@given(dags(), st.data())
def test_contracted_sets_count_as_one_node(dag: tuple[int, Edges], data: st.DataObject) -> None:
    """Whatever convex sets are contracted in turn, the quotient graph has no cycle, and convexity is that of it."""
    n, edges = dag
    graph, reach = as_graph(n, edges), Reach(range(n), edges)
    group: dict[int, int] = {k: k for k in range(n)}
    free = set(range(n))
    for _ in range(4):
        if not free:
            break
        members = data.draw(st.sets(st.sampled_from(sorted(free)), min_size=1))
        quotient = nx.DiGraph((group[a], group[b]) for a, b in graph.edges if group[a] != group[b])
        quotient.add_nodes_from(group.values())
        convex = is_convex(quotient, {group[k] for k in members})
        assert reach.is_convex(members) == convex
        if not convex:
            continue
        reach.contract(members)
        free -= members
        for k in members:
            group[k] = min(members)
        after = nx.DiGraph((group[a], group[b]) for a, b in graph.edges if group[a] != group[b])
        assert nx.is_directed_acyclic_graph(after)


def test_a_path_around_a_contracted_set_is_seen() -> None:
    """0 -> 1, 2 -> 3: once {1, 2} is one node, 0 reaches 3 through it and {0, 3} is not convex any more."""
    reach = Reach(range(4), [(0, 1), (2, 3)])
    assert reach.is_convex([0, 3])
    reach.contract([1, 2])
    assert not reach.is_convex([0, 3])
    assert reach.reaches(0, 3)
