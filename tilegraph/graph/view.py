"""A networkx view of one graph: nodes are `ir.Node`s, edges are keyed by (value, input index).

Values that the bodies of If, Loop and Scan capture from outside are edges to the node that holds the body. A view is
built by a pass, never changed, and dropped with the pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx
import onnx_ir as ir


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that are attributes of `node`."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """`graph` and every body below it, outer ones first."""
    yield graph
    for node in graph:
        for body in bodies(node):
            yield from all_graphs(body)


def captured_values(node: ir.Node) -> set[ir.Value]:
    """The values from outside that the bodies of `node` read."""
    found: set[ir.Value] = set()
    for body in bodies(node):
        inside: set[ir.Value] = set(body.inputs) | set(body.initializers.values())
        used: set[ir.Value] = {v for v in body.outputs if v is not None}
        for inner in body:
            inside.update(inner.outputs)
            used.update(v for v in inner.inputs if v is not None)
            used |= captured_values(inner)
        found |= used - inside
    return found


class GraphView:
    """`graph` is a frozen `nx.MultiDiGraph`; `order` numbers the nodes topologically."""

    def __init__(self, graph: ir.Graph) -> None:
        self.source = graph
        self.nodes: tuple[ir.Node, ...] = tuple(graph)
        self.order: dict[ir.Node, int] = {node: k for k, node in enumerate(self.nodes)}
        self.outputs: frozenset[ir.Value] = frozenset(v for v in graph.outputs if v is not None)
        view = nx.MultiDiGraph()
        view.add_nodes_from(self.nodes)
        self._users: dict[ir.Value, list[ir.Node]] = {}
        for node in self.nodes:
            read = [(v, i) for i, v in enumerate(node.inputs) if v is not None]
            read += [(v, -1) for v in sorted(captured_values(node), key=lambda v: v.name or "")]
            for value, index in read:
                self._users.setdefault(value, []).append(node)
                producer = value.producer()
                if producer in self.order:
                    view.add_edge(producer, node, key=(value, index))
        self.graph = nx.freeze(view)

    def users(self, value: ir.Value) -> list[ir.Node]:
        """The nodes of this graph that read `value`, bodies included, in order."""
        return self._users.get(value, [])

    def consumers(self, node: ir.Node) -> list[ir.Node]:
        """Distinct consumers in topological order."""
        return sorted(self.graph.successors(node), key=self.order.__getitem__)

    def producers(self, node: ir.Node) -> list[ir.Node]:
        """Distinct producers in topological order."""
        return sorted(self.graph.predecessors(node), key=self.order.__getitem__)
