"""Nodes that make values from positions: Range, ConstantOfShape, EyeLike, Trilu: nothing is read from memory."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.ops.lower.base import NodeContext, compute_dtype, point, scalar
from tilegraph.ops.prims import Const, Position, Prim

_FAR = 1 << 62  # no matrix has as many rows


def _range(c: NodeContext) -> list[Prim]:
    start, delta = c.constant(0), c.constant(2)
    if start is None or delta is None:
        raise c.decline("Range with a start or a step that is not constant")
    dtype = compute_dtype(c.node.outputs[0])
    if dtype not in ("int64", "int32"):
        raise c.decline("Range of floats")  # rounding of the accumulated step is the runtime's
    shape = c.output_shape()
    position: Prim = Position(shape, "int64", axis=0)
    result = point("Add", [point("Mul", [position, scalar(int(delta.reshape(-1)[0]), "int64")], "int64"),
                           scalar(int(start.reshape(-1)[0]), "int64")], "int64")
    return [result if dtype == "int64" else point("Cast", [result], "int32", attrs={"to": 6})]


def _constant_of_shape(c: NodeContext) -> list[Prim]:
    dtype = compute_dtype(c.node.outputs[0])
    value = c.node.attributes.get("value")
    fill = 0 if value is None else value.as_tensor().numpy().reshape(-1)[0].item()
    return [Const(c.output_shape(), dtype, value=fill)]


def _diagonal(k: int) -> int:
    """`k`, or one that is beyond every matrix as well, but to which a row can be added."""
    return min(max(k, -_FAR), _FAR)


def _trilu(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    k = c.ints(1)
    rank = len(x.shape)
    if rank < 2:
        raise c.decline("Trilu of a vector")
    row, column = Position(x.shape, "int64", axis=rank - 2), Position(x.shape, "int64", axis=rank - 1)
    shifted = point("Add", [row, scalar(_diagonal(k[0] if k else 0), "int64")], "int64")
    upper = bool(int(c.attr("upper", 1)))
    keep = point("GreaterOrEqual" if upper else "LessOrEqual", [column, shifted], "bool")
    zero = scalar(False if x.dtype == "bool" else 0, x.dtype)
    return [point("Where", [keep, x, zero], x.dtype)]


def _eye_like(c: NodeContext) -> list[Prim]:
    shape = c.output_shape()
    dtype = compute_dtype(c.node.outputs[0])
    row, column = Position(shape, "int64", axis=0), Position(shape, "int64", axis=1)
    shifted = point("Add", [row, scalar(_diagonal(int(c.attr("k", 0))), "int64")], "int64")
    one, zero = (scalar(True, dtype), scalar(False, dtype)) if dtype == "bool" else (scalar(1, dtype), scalar(0, dtype))
    return [point("Where", [point("Equal", [column, shifted], "bool"), one, zero], dtype)]


GENERATORS: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "Range"): _range,
    ("", "ConstantOfShape"): _constant_of_shape,
    ("", "Trilu"): _trilu,
    ("", "EyeLike"): _eye_like,
}
