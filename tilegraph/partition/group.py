"""Groups composites that feed one another into partitions, as large as convexity allows.

The quotient graph stays acyclic: each group is tested against the graph in which earlier groups are single nodes.
"""

from __future__ import annotations

from collections.abc import Set

import onnx_ir as ir

from tilegraph.errors import InternalError
from tilegraph.graph import GraphView, Reach


def group(graph: ir.Graph, domain: str, left: Set[ir.Node] = frozenset()) -> list[tuple[ir.Node, ...]]:
    """The partitions of `graph`: tuples of its nodes of `domain` but `left`, each in topological order."""
    view = GraphView(graph)
    reach = Reach(view.nodes, ((a, b) for a, b in view.graph.edges()))
    taken: set[ir.Node] = set()
    groups: list[tuple[ir.Node, ...]] = []
    for seed in view.nodes:
        if seed.domain != domain or seed in taken or seed in left:
            continue
        members, growing = [seed], reach.grow([seed])
        near: set[ir.Node] = set()  # what members feed or read, and may still join
        fresh = [seed]
        while fresh:
            near.update(n for m in fresh for n in (*view.consumers(m), *view.producers(m))
                        if n.domain == domain and n not in taken and n not in left)
            near.difference_update(members)
            fresh = [node for node in sorted(near, key=view.order.__getitem__) if growing.take(node)]
            members += fresh
        if not reach.is_convex(members):
            raise InternalError(f"partition of {seed.name} is not convex")
        reach.contract(members)
        taken.update(members)
        groups.append(tuple(sorted(members, key=view.order.__getitem__)))
    return groups


def outputs_of(members: tuple[ir.Node, ...], graph: ir.Graph) -> tuple[ir.Value, ...]:
    """The values of a partition that something else reads."""
    inside = set(members)
    results = {v for v in graph.outputs if v is not None}
    return tuple(v for node in members for v in node.outputs
                 if v in results or any(use.node not in inside for use in v.uses()))
