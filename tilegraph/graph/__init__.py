"""Frozen views of a graph for analysis. Only this package imports networkx."""

from tilegraph.graph.reach import Reach
from tilegraph.graph.view import GraphView, all_graphs, bodies, captured_values

__all__ = ["GraphView", "Reach", "all_graphs", "bodies", "captured_values"]
