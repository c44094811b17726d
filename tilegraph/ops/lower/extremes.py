"""ArgMax, ArgMin and Hardmax: the place of an extremum is the least (or greatest) place that holds it.

NaN as ONNX Runtime has it: it compares false, so it is passed over, and a NaN in front stays the result: place 0, and
none in Hardmax.
"""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.ops.lower.base import NodeContext, point, scalar
from tilegraph.ops.lower.reductions import reduce_over
from tilegraph.ops.lower.views import reshape, take_range
from tilegraph.ops.prims import Position, Prim
from tilegraph.spec.dims import Dim

_FAR = (1 << 31) - 1


def place_of(c: NodeContext, x: Prim, axis: int, kind: str, last: bool, nan: int = 0) -> Prim:
    """[.., 1, ..]: the first, or the last, place of the maximum ("max") or minimum ("min") of `x` along `axis`;
    `nan` where NaN is in front."""
    size = x.shape[axis].as_int()
    dtype, far = ("int64", (1 << 63) - 1) if size is None or size >= _FAR else ("int32", _FAR)
    if x.dtype == "bool":
        raise c.decline(f"{c.node.op_type} of bool")
    floats = x.dtype.startswith("float")
    held = point("Neg", [x], x.dtype) if floats and kind == "min" else x
    best = reduce_over("peak" if floats else kind, held, [axis], True)
    here = Position(x.shape, dtype, axis=axis)
    nowhere = scalar(-1 if last else far, dtype)
    places = point("Where", [point("Equal", [held, best], "bool"), here, nowhere], dtype)
    found = reduce_over("max" if last else "min", places, [axis], True)
    if not floats:
        return found
    front = point("IsNaN", [take_range(x, axis, 0, 1, Dim.of(1))], "bool")
    return point("Where", [front, scalar(nan, dtype), found], dtype)


def _arg(kind: str) -> Callable[[NodeContext], list[Prim]]:
    def lower(c: NodeContext) -> list[Prim]:
        x = c.arg(0)
        axis = int(c.attr("axis", 0)) % len(x.shape)
        found = place_of(c, x, axis, kind, bool(int(c.attr("select_last_index", 0))))
        if int(c.attr("keepdims", 1)) != 1:
            found = reshape(found, (*x.shape[:axis], *x.shape[axis + 1:]))
        return [found if found.dtype == "int64" else point("Cast", [found], "int64", attrs={"to": 7})]

    return lower


def _hardmax(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    shape, rank = x.shape, len(x.shape)
    axis = int(c.attr("axis", -1 if c.opset >= 13 else 1)) % rank
    if c.opset < 13:  # the operand is flattened to two dims at `axis`
        x = reshape(x, (Dim.product(shape[:axis]), Dim.product(shape[axis:])))
        axis = 1
    first = place_of(c, x, axis, "max", False, nan=-1)
    here = point("Equal", [Position(x.shape, first.dtype, axis=axis), first], "bool")
    return [reshape(point("Where", [here, scalar(1, x.dtype), scalar(0, x.dtype)], x.dtype), shape)]


EXTREMES: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "ArgMax"): _arg("max"),
    ("", "ArgMin"): _arg("min"),
    ("", "Hardmax"): _hardmax,
}
