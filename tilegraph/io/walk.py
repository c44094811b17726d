"""Walks over the graphs, nodes and values of a model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in the attributes of one node, in attribute order."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The main graph, then every nested one, outer before inner; functions are not entered."""
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for node in graph for inner in subgraphs_of(node)]


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs, initializers, node outputs and outputs of one graph; a value may come twice, nested ones do not."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
    yield from graph.outputs
