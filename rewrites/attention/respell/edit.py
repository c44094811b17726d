"""New nodes in front of old ones."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.graph import GraphView
from tilegraph.rewrites.attention.find import Core, cores
from tilegraph.rewrites.normalise.edit import Names
from tilegraph.rewrites.normalise.infer.info import shape_of, to_ir_shape
from tilegraph.spec.dims import Dim

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class Site:
    """Where spellings are changed: a graph, the names of its model, and the names of the products wanted."""

    graph: ir.Graph
    names: Names
    wanted: Container[str]

    def wants(self, node: ir.Node) -> bool:
        return (node.name or "") in self.wanted

    def products(self, op_type: str) -> list[ir.Node]:
        """The wanted ones that are this operator of ONNX."""
        return [n for n in self.graph if n.op_type == op_type and n.domain == "" and self.wants(n)]

    def cores(self) -> Iterator[Core]:
        """Those of the wanted ones that are still there when it is their turn."""
        for core in list(cores(GraphView(self.graph), lambda n: True)):
            if core.second.graph is self.graph and self.wants(core.second):
                yield core


class Builder:
    """Collects nodes that are put in front of `before`, with their dtypes and shapes."""

    def __init__(self, site: Site, before: ir.Node) -> None:
        self.site = site
        self.before = before
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    def add(self, op: str, inputs: Sequence[ir.Value], shape: Sequence[Any], like: ir.Value,
            **attributes: Any) -> ir.Value:
        """The result of a new node; `like` has its dtype."""
        return self.several(op, inputs, [shape], like, **attributes)[0]

    def truth(self, op: str, inputs: Sequence[ir.Value], shape: Sequence[Any]) -> ir.Value:
        """The result of a new node, a bool."""
        made = self.add(op, inputs, shape, inputs[0])
        made.type = ir.TensorType(ir.DataType.BOOL)
        return made

    def several(self, op: str, inputs: Sequence[ir.Value], shapes: Sequence[Sequence[Any]], like: ir.Value,
                **attributes: Any) -> list[ir.Value]:
        name = self.site.names.node(f"{self.before.name}_{op}")
        node = ir.node(op, list(inputs), attributes=attributes, num_outputs=len(shapes), name=name)
        for k, (output, shape) in enumerate(zip(node.outputs, shapes, strict=True)):
            output.name = self.site.names.value(f"{name}_{k}")
            output.type, output.shape = like.type, to_ir_shape(tuple(Dim.of(d) for d in shape))
        self.nodes.append(node)
        return list(node.outputs)

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self._constant(np.array(values, np.int64), ir.DataType.INT64)

    def table(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """Integers, or bools."""
        kind = ir.DataType.BOOL if array.dtype == np.bool_ else ir.DataType.INT64
        return self._constant(array if array.dtype == np.bool_ else array.astype(np.int64), kind)

    def scalar(self, number: float) -> ir.Value:
        return self._constant(np.array(number, np.float32), ir.DataType.FLOAT)

    def _constant(self, array: np.ndarray[Any, Any], dtype: ir.DataType) -> ir.Value:
        name = self.site.names.value(f"{self.before.name}_constant")
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype),
                         const_value=ir.tensor(array, name=name))
        self.constants.append(value)
        return value

    def put(self) -> None:
        for value in self.constants:
            self.site.graph.register_initializer(value)
        self.site.graph.insert_before(self.before, self.nodes)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """`new` is read wherever `old` was, as an output of the graph too, which keeps its name."""
    if old.is_graph_output():
        old.name, new.name = new.name, old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def rename(result: ir.Value, name: str | None) -> None:
    """Gives the node of `result` the name of the one that it stands for."""
    node = result.producer()
    assert node is not None
    node.name = name


def whole(value: ir.Value | None) -> Shape | None:
    """The shape if all of it is known."""
    shape = None if value is None else shape_of(value.shape)
    known = () if shape is None else tuple(d for d in shape if d is not None)
    return known if shape is not None and len(known) == len(shape) else None


def swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def swap(rank: int) -> list[int]:
    """The permutation that exchanges the last two dims."""
    return [*range(rank - 2), rank - 1, rank - 2]
