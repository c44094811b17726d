"""Constants that say more as nodes.

- Those that count up, as masks are made of, become Range: the kernel then computes them. Constant folding turns a Range
  of known length into a table; a mask that reads the table has to be scanned for what it hides, one that is made of
  positions says so by itself.
- Those of 0 and 1 that weights are multiplied by after the softmax become casts of bool: of a kernel's operands only
  the dtype is known, and weights stay a softmax only under factors that are never negative.

Constants that no attention took in are put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

_MOST = 1 << 17  # elements
_SWITCHES = 1 << 26
_POWERS = frozenset({"Softmax", "Exp", "Div", "Cast"})


@dataclass(frozen=True)
class Counting:
    """A constant, and the nodes that compute it: Range, and Reshape where it has several dims, or Cast."""

    constant: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def result(self) -> ir.Value:
        return self.nodes[-1].outputs[0]


def introduce(graph: ir.Graph) -> list[Counting]:
    """Replaces the uses of counting constants in `graph`."""
    found = []
    for value in list(graph.initializers.values()):
        if value.is_graph_input() or value.is_graph_output() or not value.uses():
            continue
        made = _counting(graph, value)
        if made is not None:
            value.replace_all_uses_with(made.result)
            found.append(made)
    return found


def introduce_switches(graph: ir.Graph, between: Iterable[ir.Node]) -> list[Counting]:
    """Replaces constants of 0 and 1 that what a softmax made is multiplied by; `between`: nodes of attentions."""
    found = []
    for node in between:
        if node.op_type != "Mul" or node.domain not in ("", "ai.onnx"):
            continue
        for value, other in (node.inputs, node.inputs[::-1]):
            made = None if other is None else other.producer()
            if value is None or made is None or made.op_type not in _POWERS:
                continue
            switch = _switch(graph, value)
            if switch is not None:
                value.replace_all_uses_with(switch.result)
                found.append(switch)
    return found


def _switch(graph: ir.Graph, value: ir.Value) -> Counting | None:
    tensor = value.const_value
    if tensor is None or value.graph is not graph or not value.is_initializer() or value.is_graph_input() \
            or value.is_graph_output() or tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16) \
            or not 1 < tensor.size <= _SWITCHES:
        return None
    array = tensor.numpy()
    if not np.isin(array, (0, 1)).all():
        return None
    source = _constant(graph, f"{value.name}_switch", array.astype(bool), ir.DataType.BOOL)
    node = ir.node("Cast", [source], attributes={"to": int(tensor.dtype)}, name=f"{value.name}_switched")
    node.outputs[0].name = f"{value.name}_as_number"
    node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
    graph.insert_before(next(iter(graph)), [node])
    return Counting(value, (node,))


def put_back(graph: ir.Graph, found: list[Counting]) -> None:
    """Undoes `introduce` wherever the result is still read, and drops what nothing reads any more."""
    for one in found:
        limits = [v for node in one.nodes for v in node.inputs if v is not None and v.is_initializer()]
        if one.nodes[-1].graph is graph:
            one.result.replace_all_uses_with(one.constant)
            graph.remove(list(reversed(one.nodes)), safe=True)
        for value in (*limits, one.constant):
            if not value.uses() and not value.is_graph_output():
                graph.initializers.pop(value.name or "", None)


def _counting(graph: ir.Graph, value: ir.Value) -> Counting | None:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or value.shape is None:
        return None
    shape = tuple(int(d) for d in tensor.shape.numpy())
    size = int(np.prod(shape, dtype=np.int64))
    if sum(d != 1 for d in shape) != 1 or not 2 < size <= _MOST:
        return None
    array = tensor.numpy().reshape(-1)
    start, step = int(array[0]), int(array[1]) - int(array[0])
    limit, ends = start + step * size, np.iinfo(array.dtype)
    if not step or not ends.min <= limit <= ends.max \
            or not np.array_equal(array, start + step * np.arange(size, dtype=np.int64)):
        return None
    if any(use.node.domain not in ("", "ai.onnx") or use.node.op_type in _PARAMETERS for use in value.uses()):
        return None
    limits = [_scalar(graph, f"{value.name}_{name}", number, tensor.dtype)
              for name, number in (("start", start), ("limit", limit), ("step", step))]
    count = ir.Node("", "Range", limits, name=f"{value.name}_range")
    nodes = [count]
    count.outputs[0].name = f"{value.name}_counted"
    count.outputs[0].shape, count.outputs[0].type = ir.Shape([size]), value.type
    if len(shape) > 1:
        target = _constant(graph, f"{value.name}_dims", np.array(shape, np.int64), ir.DataType.INT64)
        nodes.append(ir.Node("", "Reshape", [count.outputs[0], target], name=f"{value.name}_shaped"))
        nodes[1].outputs[0].name = f"{value.name}_laid"
        nodes[1].outputs[0].shape, nodes[1].outputs[0].type = value.shape, value.type
    first = next(iter(graph))
    graph.insert_before(first, nodes)
    return Counting(value, tuple(nodes))


# What reads its constants as sizes, axes or places.
_PARAMETERS = frozenset({"Reshape", "Slice", "Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements",
                         "Expand", "Tile", "Pad", "Resize", "Unsqueeze", "Squeeze", "Split", "ConstantOfShape",
                         "Range", "OneHot", "TopK", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})


def _scalar(graph: ir.Graph, name: str, number: int, dtype: ir.DataType) -> ir.Value:
    return _constant(graph, name, np.array(number, dtype.numpy()), dtype)


def _constant(graph: ir.Graph, name: str, array: np.ndarray[Any, Any],
              dtype: ir.DataType) -> ir.Value:
    tensor = ir.tensor(array, dtype=dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value
