"""What lowering rules share: reading operands, attributes and constants, and building prims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.ops.broadcast import broadcast
from tilegraph.ops.count import cost_of
from tilegraph.ops.dtypes import COMPUTE, stored_name
from tilegraph.ops.index import Ix
from tilegraph.ops.lower.extents import Renames
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.ops.pointwise.base import CONSTANTS
from tilegraph.ops.prims import Const, Decline, Point, Prim, Reduce, View
from tilegraph.spec.dims import Dim, Shape


class NodeContext:
    """One node being lowered: its operands as prims, attributes, opset and constant inputs."""

    def __init__(self, node: ir.Node, args: Sequence[Prim | None], opset: int,
                 rename: Renames | None = None) -> None:
        self.node = node
        self.args = list(args)
        self.opset = opset
        self.rename = Renames() if rename is None else rename

    def arg(self, i: int) -> Prim:
        """Operand i, which must be present."""
        if i >= len(self.args) or self.args[i] is None:
            raise Decline(f"{self.node.op_type} lacks input {i}", self.node.name or "")
        return self.args[i]  # type: ignore[return-value]

    def optional(self, i: int) -> Prim | None:
        return self.args[i] if i < len(self.args) else None

    def attr(self, name: str, default: Any = None) -> Any:
        found = self.node.attributes.get(name)
        if found is None:  # attributes are float32, their defaults too
            return float(np.float32(default)) if isinstance(default, float) else default
        return list(found.value) if found.type.name.endswith("S") else found.value

    def attrs(self) -> dict[str, Any]:
        return {name: self.attr(name) for name in self.node.attributes}

    def constant(self, i: int) -> np.ndarray[Any, Any] | None:
        """Input i as an array if it is known at compile time."""
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        return None if value is None else constant_of(value)

    def ints(self, i: int, attribute: str | None = None) -> list[int] | None:
        """Integers from an attribute, or else from constant input i. None: absent. `Decline`: not constant."""
        if attribute is not None and attribute in self.node.attributes:
            value = self.attr(attribute)
            return [int(v) for v in value] if isinstance(value, list) else [int(value)]
        if i >= len(self.node.inputs) or self.node.inputs[i] is None:
            return None
        array = self.constant(i)
        if array is None:
            raise Decline(f"input {i} of {self.node.op_type} is not constant", self.node.name or "")
        return [int(v) for v in array.reshape(-1)]

    def output_shape(self, k: int = 0) -> Shape:
        """The inferred shape of output k; `Decline` if a dim is unknown."""
        return shape_of(self.node.outputs[k], self.rename)

    def decline(self, reason: str) -> Decline:
        return Decline(reason, self.node.name or "")


def constant_of(value: ir.Value) -> np.ndarray[Any, Any] | None:
    """The contents of an initializer or of a Constant node's output, unless a caller may override it."""
    if value.is_graph_input():
        return None
    tensor = value.const_value
    if tensor is None:
        producer = value.producer()
        if producer is not None and producer.op_type == "Constant" and producer.domain in ("", "ai.onnx"):
            return _constant_node(producer)
        return None
    return tensor.numpy()


def _constant_node(node: ir.Node) -> np.ndarray[Any, Any] | None:
    for name, dtype in (("value_int", np.int64), ("value_ints", np.int64), ("value_float", np.float32),
                        ("value_floats", np.float32)):
        if name in node.attributes:
            return np.asarray(node.attributes[name].value, dtype)
    if "value" in node.attributes:
        array: np.ndarray[Any, Any] = node.attributes["value"].as_tensor().numpy()
        return array
    return None


def shape_of(value: ir.Value, rename: Renames | None = None) -> Shape:
    """The value's shape as dims; `Decline` naming the value where it is unknown."""
    name = value.name or "?"
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise Decline(f"{name} is not a tensor", name)
    if value.shape is None:
        raise Decline(f"the shape of {name} is unknown", name)
    dims: list[Dim] = []
    for extent in value.shape:
        known = extent if isinstance(extent, int) else extent.value
        if known is None:
            raise Decline(f"a dim of {name} is unknown", name)
        dim = Dim.of(known)
        dims.append(rename.of(dim) if rename else dim)
    return tuple(dims)


def compute_dtype(value: ir.Value) -> str:
    return COMPUTE[stored_name(value.dtype, value.name or "")]


# -- builders ---------------------------------------------------------------------------------------------------------


def scalar(value: Any, dtype: str) -> Const:
    return Const((), dtype, np.dtype(dtype).type(value).item())


def point(op_type: str, operands: Sequence[Prim | None], dtype: str, *, domain: str = "",
          attrs: Mapping[str, Any] | None = None, opset: int = 18) -> Point:
    """An entry of the operator table applied to operands (None: an absent optional operand).

    Dividing by a constant multiplies by its reciprocal: at most 1 ulp, and a division takes eight times as long.
    """
    if (domain, op_type) == ("", "Div") and dtype in ("float32", "float64"):
        divisor = operands[1]
        if isinstance(divisor, Const) and 2.0**-100 < abs(divisor.value) < 2.0**100:
            factor = Const(divisor.shape, dtype, np.dtype(dtype).type(1.0 / divisor.value).item())
            return point("Mul", [operands[0], factor], dtype)
    entry = POINTWISE[domain, op_type]
    attributes = dict(attrs or {})
    attributes[CONSTANTS] = {i: p.value for i, p in enumerate(operands) if isinstance(p, Const)}
    reason = entry.accepts([None if p is None else p.dtype for p in operands], attributes, opset)
    if reason is not None:
        raise Decline(reason)
    present = tuple(p for p in operands if p is not None)
    places = [i for i, p in enumerate(operands) if p is not None]
    count = len(operands)

    def fn(m: Any, values: Sequence[Any]) -> Any:
        full: list[Any] = [None] * count
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return entry.fn(m, full, attributes, dtype)

    shown = ",".join(f"{k}={attributes[k]!r}" for k in sorted(attributes))
    key = f"{domain}{'.' if domain else ''}{op_type}<{shown}>{places if len(places) != count else ''}"
    shape = broadcast([p.shape for p in present])
    dtypes = tuple(p.dtype for p in present)
    constants = tuple(sorted(attributes[CONSTANTS].items()))
    costs = (key, dtypes, repr(constants))
    if costs not in _COSTS:
        _COSTS[costs] = cost_of(fn, dtypes)
    return Point(shape, dtype, key=key, operands=present, fn=fn, cost=_COSTS[costs])


def quotient(a: Prim, b: Prim) -> Point:
    """a / b of floats, correctly rounded whatever b is; see `point` and the kernels of regions for other divisions."""
    def fn(m: Any, values: Sequence[Any]) -> Any:
        return m.div(values[0], values[1])

    return Point(broadcast([a.shape, b.shape]), a.dtype, key="quotient", operands=(a, b), fn=fn, cost=4)


_COSTS: dict[tuple[Any, ...], int] = {}


def reduce_last(kind: str, operand: Prim, axes: int) -> Reduce:
    return Reduce(operand.shape[:len(operand.shape) - axes], operand.dtype, kind=kind, operand=operand, axes=axes)


def view(source: Prim, shape: Shape, pull: Callable[[tuple[Ix, ...]], tuple[Ix, ...]], key: str) -> View:
    return View(shape, source.dtype, source=source, pull=pull, key=key)
