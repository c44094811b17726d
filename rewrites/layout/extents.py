"""Extents that inference cannot express get names, so that what follows can be expressed by them.

A feature pyramid adds an upsampled image to a larger one. With symbolic height and width their extents are different
expressions, equal in every run that is valid, but not provably so: the sum has unknown extents, and so has all that
follows. A name of its own says nothing about an extent but that it has a value, and kernels bind it when they run.

Handles: values [N, C, *spatial] of float32 with known C that a convolution or pooling needs, made by nodes whose
operands have known shapes. Refused: ranks or channels that are unknown.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from tilegraph.graph import GraphView, all_graphs
from tilegraph.io.names import unique_name
from tilegraph.passes import PassContext
from tilegraph.rewrites.conv.units import is_window
from tilegraph.rewrites.fusion.base import CompositePass
from tilegraph.rewrites.normalise.shapes import Shapes

_ROUNDS = 16  # pyramids have three to five levels; each round infers all shapes again


class NameExtents(CompositePass):
    """A pass of the planner: with offload "none" nobody needs the names."""

    name = "name-extents"

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        modified = False
        for _ in range(_ROUNDS):
            found = [value for graph in all_graphs(model.graph) for value in _first_unknown(graph)]
            if not found:
                break
            taken = {d.value for graph in all_graphs(model.graph) for node in graph for v in node.outputs
                     if v.shape is not None for d in v.shape if not isinstance(d, int) and d.value is not None}
            for value in found:
                assert value.shape is not None
                value.shape = ir.Shape([d if _is_known(d) else unique_name(_symbol(value, k), taken)
                                        for k, d in enumerate(value.shape)])
                context.diagnostics.took(self.name, value.name or "", f"unknown extents are called {value.shape}",
                                         op="" if (node := value.producer()) is None else node.op_type)
            Shapes().run(model, context)
            modified = True
        return modified


def _first_unknown(graph: ir.Graph) -> list[ir.Value]:
    """Images with unknown extents that a window depends on, made by nodes whose operands are all known."""
    view = GraphView(graph)
    needed = {n for n in view.nodes if is_window(n) and _unknown(n.inputs[0])}
    for node in reversed(view.nodes):
        if any(user in needed for v in node.outputs if _unknown(v) for user in view.users(v)):
            needed.add(node)
    return [v for node in view.nodes if node in needed for v in node.outputs
            if _is_image(v) and _unknown(v) and not any(_unknown(i) for i in node.inputs)]


def _is_image(value: ir.Value) -> bool:
    return (value.dtype == ir.DataType.FLOAT and value.shape is not None and len(value.shape) in (3, 4)
            and isinstance(value.shape[1], int))


def _unknown(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and not all(map(_is_known, value.shape))


def _is_known(extent: int | ir.SymbolicDim) -> bool:
    return isinstance(extent, int) or extent.value is not None


def _symbol(value: ir.Value, axis: int) -> str:
    """A symbol, not an expression: names of values may have slashes."""
    return re.sub(r"\W", "_", f"{value.name}_d{axis}")
