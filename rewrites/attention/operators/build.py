"""Writes the standard nodes that an operator stands for, next to the operator.

Extents that the graph knows become constants; others are read at run time, and normalisation removes what it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.normalise.edit import Names, is_used, replace
from tilegraph.rewrites.normalise.infer.info import shape_of

MIN_OPSET = 13
_OWNER = "tilegraph.attention_operator"

Part = int | ir.Value  # an extent: known, or an int64 vector of one element


@dataclass(frozen=True)
class Owner:
    """The operator that a node was made for. `asked`: a run decides between the node and the operator itself."""

    name: str
    op: str
    asked: bool = False


def owner_of(node: ir.Node) -> Owner | None:
    found: Owner | None = node.meta.get(_OWNER)
    return found


class Build:
    """Appends nodes for `node`; `finish` puts them into its graph. All results are named after the operator."""

    def __init__(self, node: ir.Node, names: Names, opset: int) -> None:
        if opset < MIN_OPSET:
            raise Decline(f"opset {opset}: taken apart from opset {MIN_OPSET} on")
        self.node = node
        self.names = names
        self.opset = opset
        self.made: list[ir.Node] = []
        self.constants: list[ir.Value] = []

    # -- what the operator says -------------------------------------------------------------------------------
    def input(self, index: int) -> ir.Value | None:
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        return None if value is None or value.name == "" else value

    def needed(self, index: int, what: str) -> ir.Value:
        value = self.input(index)
        if value is None:
            raise Decline(f"{what} is not given")
        return value

    def attr(self, name: str, default: Any) -> Any:
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        if attribute.is_ref():
            raise Decline(f"attribute {name} is a parameter of a function")
        return attribute.value

    def wants(self, index: int) -> bool:
        """Whether something reads the output."""
        if index >= len(self.node.outputs):
            return False
        return is_used(self.node.outputs[index])

    def rank(self, value: ir.Value, what: str) -> int:
        if value.shape is None:
            raise Decline(f"the number of dims of {what} is unknown")
        return len(value.shape)

    def known(self, value: ir.Value, axis: int) -> int | None:
        """The extent, where it is a number."""
        shape = shape_of(value.shape)
        if shape is None:
            return None
        dim = shape[axis]
        return None if dim is None else dim.as_int()

    def same(self, a: ir.Value, axis_a: int, b: ir.Value, axis_b: int) -> bool:
        """Whether two extents are equal for certain."""
        left, right = shape_of(a.shape), shape_of(b.shape)
        if left is None or right is None:
            return False
        return left[axis_a] is not None and left[axis_a] == right[axis_b]

    # -- nodes ------------------------------------------------------------------------------------------------
    def op(self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any) -> ir.Value:
        made = ir.node(op_type, list(inputs), attributes=attributes, domain=domain,
                       name=self.names.node(f"{self.node.name}/{op_type}"))
        made.outputs[0].name = self.names.value(f"{self.node.name}/{op_type}_out")
        self.made.append(made)
        return made.outputs[0]

    def const(self, array: npt.NDArray[Any], dtype: ir.DataType | None = None) -> ir.Value:
        name = self.names.value(f"{self.node.name}/constant")
        tensor = ir.tensor(array, dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def ints(self, *values: int) -> ir.Value:
        return self.const(np.array(values, np.int64))

    def scalar(self, value: float, like: ir.Value | ir.DataType) -> ir.Value:
        """One number in the dtype of `like`."""
        dtype = like if isinstance(like, ir.DataType) else like.dtype
        if dtype is None:
            raise Decline("an input has no dtype")
        return self.const(np.array(value, dtype.numpy()), dtype)

    def extent(self, value: ir.Value, axis: int) -> Part:
        size = self.known(value, axis) if value.shape is not None else None
        return self.op("Gather", self.op("Shape", value), self.ints(axis), axis=0) if size is None else size

    def vector(self, *parts: Part) -> ir.Value:
        """The extents as one int64 vector."""
        if all(isinstance(p, int) for p in parts):
            return self.ints(*(p for p in parts if isinstance(p, int)))
        pieces = [self.ints(p) if isinstance(p, int) else p for p in parts]
        return pieces[0] if len(pieces) == 1 else self.op("Concat", *pieces, axis=0)

    def times(self, a: Part, b: Part) -> Part:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.op("Mul", self.vector(a), self.vector(b))

    def plus(self, a: Part, b: Part) -> Part:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if 0 in (a, b):
            return b if a == 0 else a
        return self.op("Add", self.vector(a), self.vector(b))

    def reshape(self, value: ir.Value, *parts: Part) -> ir.Value:
        return self.op("Reshape", value, self.vector(*parts))

    def positions(self, count: Part, *shape: int) -> ir.Value:
        """0, 1, ... of int64, laid out as `shape`."""
        limit = self.const(np.array(count, np.int64)) if isinstance(count, int) else \
            self.op("Squeeze", count, self.ints(0))
        zero, one = self.const(np.array(0, np.int64)), self.const(np.array(1, np.int64))
        return self.op("Reshape", self.op("Range", zero, limit, one), self.ints(*shape))

    def slice(self, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
        return self.op("Slice", value, self.ints(start), self.ints(end), self.ints(axis))

    def row_max(self, value: ir.Value) -> ir.Value:
        if self.opset >= 18:
            return self.op("ReduceMax", value, self.ints(-1), keepdims=1)
        return self.op("ReduceMax", value, axes=[-1], keepdims=1)

    def cut(self, first: int) -> list[ir.Node]:
        """The nodes made from number `first` on, which become part of a branch."""
        nodes = self.made[first:]
        del self.made[first:]
        return nodes

    def whole(self) -> tuple[list[ir.Node], list[ir.Value | None]]:
        """The operator itself as a branch: its copy, and the copy's results."""
        node = self.node
        same = ir.Node(node.domain, node.op_type, list(node.inputs),
                       [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()],
                       num_outputs=len(node.outputs), name=self.names.node(f"{node.name}/whole"))
        for old, new in zip(node.outputs, same.outputs, strict=True):
            new.name, new.type = self.names.value(f"{node.name}/{old.name}_whole") if old.name else "", old.type
        return [same], list(same.outputs)

    def choose(self, condition: ir.Value, yes: tuple[list[ir.Node], list[ir.Value | None]],
               no: tuple[list[ir.Node], list[ir.Value | None]]) -> list[ir.Value | None]:
        """If(condition, yes, no): nodes and results of either branch. Results stay None where those of `yes` are."""
        node = self.node
        wanted = [k for k, result in enumerate(yes[1]) if result is not None]
        branches = [ir.AttrGraph(key, ir.Graph([], [v for k in wanted if (v := branch[1][k]) is not None],
                                               nodes=branch[0], name=self.names.node(f"{node.name}/{key}")))
                    for key, branch in (("then_branch", yes), ("else_branch", no))]
        made = ir.Node("", "If", [condition], branches, num_outputs=len(wanted),
                       name=self.names.node(f"{node.name}/If"))
        self.made.append(made)
        given: list[ir.Value | None] = [None] * len(yes[1])
        for k, output in zip(wanted, made.outputs, strict=True):
            output.name, output.type = self.names.value(f"{node.name}/If_out"), node.outputs[k].type
            given[k] = output
        return given

    # -- the graph --------------------------------------------------------------------------------------------
    def finish(self, results: Sequence[ir.Value | None], root: ir.Graph, owned: bool = True) -> None:
        """Lets `results` stand for the operator's outputs (None: nothing reads it) and removes the operator.

        `owned`: the nodes remember whose they are, see `owner_of`.
        """
        graph = self.node.graph
        assert graph is not None
        for constant in self.constants:
            graph.register_initializer(constant)
        if owned:
            name, op = self.node.name or "", self.node.op_type
            for made in self.made:
                made.meta[_OWNER] = Owner(name, op)
                for inner in _inside(made):
                    inner.meta[_OWNER] = Owner(name, op, asked=True)
        graph.insert_before(self.node, self.made)
        for old, new in zip(self.node.outputs, results, strict=False):
            if new is not None:
                new.type = new.type or old.type
                replace(old, new, root)
        graph.remove(self.node, safe=True)

    def abandon(self) -> None:
        """Lets go of the values that the nodes read; nothing of them reached the graph."""
        for made in self.made:
            for index in range(len(made.inputs)):
                made.replace_input_with(index, None)


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for body in subgraphs_of(node):
        for inner in body:
            yield inner
            yield from _inside(inner)
