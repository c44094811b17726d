"""Pad and CenterCropPad: an axis at a time, the operand between constants, or between parts of itself."""

from __future__ import annotations

from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.lower.views import concat, expand, take_range
from tilegraph.ops.prims import Const, Prim
from tilegraph.spec.dims import Dim


def lower_pad(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    rank = len(source.shape)
    pads = c.ints(1, "pads")
    if pads is None:
        raise c.decline("Pad lacks pads")
    given = c.ints(3)
    axes = list(range(rank)) if given is None else [a % rank for a in given]
    if len(pads) != 2 * len(axes):
        raise c.decline(f"{len(pads)} pads for {len(axes)} axes")
    mode = str(c.attr("mode", "constant"))
    fill = _fill(c) if mode == "constant" else 0
    for k, axis in enumerate(axes):
        before, after = pads[k], pads[len(axes) + k]
        source = _cropped(c, source, axis, -min(before, 0), -min(after, 0))
        source = _padded(c, source, axis, max(before, 0), max(after, 0), mode, fill)
    return [source]


def lower_center_crop_pad(c: NodeContext) -> list[Prim]:
    """CenterCropPad: what is too long is cropped on both sides, what is too short lies between zeros."""
    source = c.arg(0)
    rank = len(source.shape)
    wanted = c.ints(1)
    axes = [a % rank for a in c.attr("axes")] if c.attr("axes") is not None else list(range(rank))
    if wanted is None or len(wanted) != len(axes):
        raise c.decline("CenterCropPad lacks an extent for each axis")
    for axis, extent in zip(axes, wanted, strict=True):
        size = source.shape[axis].as_int()
        if size is None:
            raise c.decline(f"CenterCropPad of the symbolic extent {source.shape[axis]}")
        less, more = max(size - extent, 0), max(extent - size, 0)
        source = _cropped(c, source, axis, less // 2, less - less // 2)
        source = _padded(c, source, axis, more // 2, more - more // 2, "constant", 0)
    return [source]


def _fill(c: NodeContext) -> float | int | bool:
    """The constant around the data."""
    if c.opset < 11:
        return float(c.attr("value", 0.0))
    if len(c.node.inputs) <= 2 or c.node.inputs[2] is None:
        return 0
    value = c.constant(2)
    if value is None:
        raise c.decline("Pad with a value that is not constant")
    number: float | int | bool = value.reshape(-1)[0].item()
    return number


def _cropped(c: NodeContext, source: Prim, axis: int, before: int, after: int) -> Prim:
    """Without as many elements: what negative pads mean."""
    if not before and not after:
        return source
    size = source.shape[axis].as_int()
    if size is None or before + after >= size:
        raise c.decline(f"negative pads of the extent {source.shape[axis]}")
    return take_range(source, axis, before, 1, Dim.of(size - before - after))


def padded_with(source: Prim, axis: int, before: int, after: int, value: float | int | bool) -> Prim:
    """`source` with as many elements `value` along the axis before and after it."""
    def filled(count: int) -> Prim:
        return Const((*source.shape[:axis], Dim.of(count), *source.shape[axis + 1:]), source.dtype, value=value)

    parts = [filled(before)] if before else []
    return concat([*parts, source, *([filled(after)] if after else [])], axis)


def _padded(c: NodeContext, source: Prim, axis: int, before: int, after: int, mode: str,
            fill: float | int | bool) -> Prim:
    def around(count: int) -> tuple[Dim, ...]:
        return (*source.shape[:axis], Dim.of(count), *source.shape[axis + 1:])

    if not before and not after:
        return source
    if mode == "constant":
        return padded_with(source, axis, before, after, bool(fill) if source.dtype == "bool" else fill)
    size = source.shape[axis].as_int()
    if size is None:
        raise c.decline(f"Pad of the symbolic extent {source.shape[axis]} in mode {mode}")
    if mode == "edge":
        first = expand(take_range(source, axis, 0, 1, Dim.of(1)), around(before)) if before else None
        last = expand(take_range(source, axis, size - 1, 1, Dim.of(1)), around(after)) if after else None
    elif mode == "reflect" and before < size and after < size:
        first = take_range(source, axis, before, -1, Dim.of(before)) if before else None
        last = take_range(source, axis, size - 2, -1, Dim.of(after)) if after else None
    elif mode == "wrap" and before <= size and after <= size:
        first = take_range(source, axis, size - before, 1, Dim.of(before)) if before else None
        last = take_range(source, axis, 0, 1, Dim.of(after)) if after else None
    else:
        raise c.decline(f"Pad of {size} elements by {before} and {after} in mode {mode}")
    return concat([p for p in (first, source, last) if p is not None], axis)
