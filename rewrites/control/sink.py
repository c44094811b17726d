"""Moves what depends on an If into its branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from tilegraph.graph import captured_values
from tilegraph.io.walk import subgraphs_of, values_of
from tilegraph.rewrites.normalise.edit import Names, let_go, nodes_inside

BRANCHES = ("then_branch", "else_branch")


def tail_of(node: ir.Node) -> list[ir.Node]:
    """What runs after `node` because of it, in order: all that reads its results, captures included, and what only
    these read."""
    graph = node.graph
    assert graph is not None
    nodes = list(graph)
    made: set[ir.Value] = set(node.outputs)
    tail: set[ir.Node] = set()
    for other in nodes[nodes.index(node) + 1:]:
        if not made.isdisjoint(_read(other)):
            tail.add(other)
            made.update(other.outputs)
    users = _users(nodes)
    for other in reversed(nodes):
        if other is node or other in tail or not any(users.get(v) for v in other.outputs):
            continue
        if not any(v.is_graph_output() for v in other.outputs) and all(
                users.get(v, set()) <= tail for v in other.outputs):
            tail.add(other)
    return [n for n in nodes if n in tail]


def sink(node: ir.Node, tail: Sequence[ir.Node], names: Names) -> ir.Node:
    """Puts a copy of `tail` at the end of both branches of the If `node`; returns the If that takes the place of all.

    The outputs of the graph that they made keep their names, types and shapes.
    """
    graph = node.graph
    assert graph is not None
    gone = {node, *tail}
    results = [v for v in graph.outputs if v.producer() in gone]
    attributes = []
    for key in BRANCHES:
        branch = node.attributes[key].as_graph()
        ends: list[ir.Value] = list(branch.outputs)
        mapping: dict[ir.Value, ir.Value] = dict(zip(node.outputs, ends, strict=True))
        branch.outputs.clear()
        for other in tail:
            branch.append(copied(other, mapping, names))
        for value in results:
            end = mapping[value]
            if any(end is o for o in branch.outputs):  # the same value twice
                carrier = ir.node("Identity", [end], name=names.node(f"{end.name}_again"))
                carrier.outputs[0].name = names.value(f"{end.name}_again")
                carrier.outputs[0].type, carrier.outputs[0].shape = end.type, end.shape
                branch.append(carrier)
                end = carrier.outputs[0]
            branch.outputs.append(end)
        attributes.append(ir.AttrGraph(key, branch))
    for attribute in attributes:  # a graph belongs to one node
        node.attributes.pop(attribute.name)
    made = ir.Node("", "If", list(node.inputs), attributes, num_outputs=len(results),
                   name=names.node(f"{node.name}_all"))
    graph.append(made)
    for old, new in zip(results, made.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        name, old.name = old.name, names.value(f"{old.name}_gone")
        new.name = name
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = new
    for other in reversed([node, *tail]):
        let_go(other)
        graph.remove(other, safe=True)
    return made


def copied(node: ir.Node, mapping: dict[ir.Value, ir.Value], names: Names) -> ir.Node:
    """A copy of `node` that reads what `mapping` says; its results join the mapping. All names are new."""
    attributes = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            attributes.append(ir.AttrGraph(attribute.name, _copied_body(attribute.as_graph(), mapping, names)))
        else:
            attributes.append(ir.Attr(attribute.name, attribute.type, attribute.value))
    made = ir.Node(node.domain, node.op_type, [None if v is None else mapping.get(v, v) for v in node.inputs],
                   attributes, overload=node.overload, num_outputs=len(node.outputs), version=node.version,
                   name=names.node(node.name or node.op_type))
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.name = names.value(old.name) if old.name else ""
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        mapping[old] = new
    return made


def _copied_body(body: ir.Graph, mapping: Mapping[ir.Value, ir.Value], names: Names) -> ir.Graph:
    made = body.clone(allow_outer_scope_values=True)
    for node in nodes_inside(made):
        node.name = names.node(node.name or node.op_type)
        for index, value in enumerate(node.inputs):
            if value is not None and value in mapping:
                node.replace_input_with(index, mapping[value])
    for graph in [made, *(g for node in nodes_inside(made) for g in subgraphs_of(node))]:
        for value in dict.fromkeys(values_of(graph)):
            if value.name:
                value.name = names.value(value.name)
    return made


def _read(node: ir.Node) -> set[ir.Value]:
    return {v for v in node.inputs if v is not None} | captured_values(node)


def _users(nodes: Sequence[ir.Node]) -> dict[ir.Value, set[ir.Node]]:
    users: dict[ir.Value, set[ir.Node]] = {}
    for node in nodes:
        for value in _read(node):
            users.setdefault(value, set()).add(node)
    return users
