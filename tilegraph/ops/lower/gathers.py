"""Nodes that read elements at computed places: Gather, GatherElements, GatherND, ReverseSequence.

A place that is out of range ends the run with an error, as in ONNX Runtime; negative ones count from the end. Elements
that no kernel evaluates (a slice behind a Gather) are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, constant_of, point, scalar
from tilegraph.ops.lower.views import concat, reshape, take_range
from tilegraph.ops.prims import Extent, Pick, Point, Position, Prim
from tilegraph.spec.dims import Dim, Shape

_RUNS = 16  # slices that one Gather may be made of


def lower_gather(c: NodeContext) -> list[Prim]:
    """Constant places of a known extent are slices, one for each evenly spaced run of them, where these are few."""
    source = c.arg(0)
    axis = int(c.attr("axis", 0)) % len(source.shape)
    picked, size = c.constant(1), source.shape[axis].as_int()
    if size is None:
        size = _extent(c.node)
    if picked is not None and size is not None:
        flat = [int(v) + size if v < 0 else int(v) for v in picked.reshape(-1)]
        if not flat or min(flat) < 0 or max(flat) >= size:
            raise c.decline("Gather indices are empty or out of range")
        runs = _runs(flat)
        if len(runs) <= _RUNS:
            ranged = concat([take_range(source, axis, first, step, Dim.of(n)) for first, step, n in runs], axis)
            middle = tuple(Dim.of(d) for d in picked.shape)
            return [reshape(ranged, (*source.shape[:axis], *middle, *source.shape[axis + 1:]))]
    index = c.arg(1)
    rank, behind = len(index.shape), len(source.shape) - axis - 1
    shape = (*source.shape[:axis], *index.shape, *source.shape[axis + 1:])
    place = place_of(c, reshape(index, (*index.shape, *[Dim.of(1)] * behind)), source.shape[axis])

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:axis], at[0], *ix[axis + rank:])

    return [Pick(shape, source.dtype, source=source, indices=(place,), extents=(source.shape[axis],), pull=pull,
                 key=f"gather[{axis},{rank}]")]


def takes_slices(node: Any) -> bool:
    """Whether a Gather's indices are constant and so few or so regular that they steer it, see `lower_gather`."""
    value, size = node.inputs[1], _extent(node)
    array = None if value is None else constant_of(value)
    if array is None or array.size == 0 or size is None:
        return False
    return len(_runs([int(v) + size if v < 0 else int(v) for v in array.reshape(-1)])) <= _RUNS


def _extent(node: Any) -> int | None:
    """That of the axis which a Gather picks from, where it is a number."""
    source = node.inputs[0]
    if source is None or not source.shape:
        return None
    attribute = node.attributes.get("axis")
    extent = source.shape[(0 if attribute is None else attribute.as_int()) % len(source.shape)]
    return extent if isinstance(extent, int) else None


def place_of(c: NodeContext, index: Prim, extent: Dim) -> Prim:
    """`index` (int32 or int64) counted from the front of `extent` elements, int64; an error of the run if outside."""
    if index.dtype not in ("int32", "int64"):
        raise c.decline(f"indices of dtype {index.dtype}")
    if index.dtype != "int64":
        index = point("Cast", [index], "int64", attrs={"to": 7})
    size = extent.as_int()
    count: Prim = Extent((), "int64", dim=extent) if size is None else scalar(size, "int64")
    inside = f"[-{extent}, {extent if size is None else size - 1}{' - 1' if size is None else ''}]"
    reason = f"{c.node.op_type}: an index is outside of {inside}"

    def fn(m: Any, values: Sequence[Any]) -> Any:
        i, n = m.share(values[0]), values[1]
        zero = m.const(0, "int64")
        i = m.share(m.select(m.lt(i, zero), m.add(i, n), i))
        fine = m.share(m.land(m.le(zero, i), m.lt(i, n)))
        m.require(fine, reason)
        return m.select(fine, i, zero)

    return Point(index.shape, "int64", key=f"place<{reason}>", operands=(index, count), fn=fn, cost=6)


def lower_gather_elements(c: NodeContext) -> list[Prim]:
    """[.., i, ..] of the result is [.., index[.., i, ..], ..] of the source."""
    source, index = c.arg(0), c.arg(1)
    axis = int(c.attr("axis", 0)) % len(source.shape)
    for k, (have, want) in enumerate(zip(source.shape, index.shape, strict=True)):
        a, b = have.as_int(), want.as_int()
        if k != axis and have != want and (a is None or b is None or b > a):
            raise c.decline(f"indices of extent {want} in axis {k}, where the source has {have}")

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:axis], at[0], *ix[axis + 1:])

    place = place_of(c, index, source.shape[axis])
    return [Pick(index.shape, source.dtype, source=source, indices=(place,), extents=(source.shape[axis],), pull=pull,
                 key=f"elements[{axis}]")]


def lower_gather_nd(c: NodeContext) -> list[Prim]:
    """indices: [batch.., places.., m]; each of their rows is a place in the m axes after the batch axes."""
    source, index = c.arg(0), c.arg(1)
    batch = int(c.attr("batch_dims", 0))
    m = index.shape[-1].as_int()
    if m is None or m < 1:
        raise c.decline(f"GatherND of places in {index.shape[-1]} axes")
    if any(a != b for a, b in zip(source.shape[:batch], index.shape[:batch], strict=True)):
        raise c.decline("the batch extents of GatherND are not equal for certain")
    rest = source.shape[batch + m:]
    shape: Shape = (*index.shape[:-1], *rest)
    front = len(index.shape) - 1
    places = []
    for k in range(m):
        one = take_range(index, front, k, 1, Dim.of(1))
        one = reshape(one, (*index.shape[:-1], *[Dim.of(1)] * len(rest)))
        places.append(place_of(c, one, source.shape[batch + k]))

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:batch], *at, *ix[front:])

    return [Pick(shape, source.dtype, source=source, indices=tuple(places), extents=source.shape[batch:batch + m],
                 pull=pull, key=f"nd[{batch},{m}]")]


def lower_reverse_sequence(c: NodeContext) -> list[Prim]:
    """The first `length` elements along the time axis backwards, the others as they are. lengths: [batch]."""
    source, lengths = c.arg(0), c.arg(1)
    time, batch = int(c.attr("time_axis", 0)), int(c.attr("batch_axis", 1))
    rank, extent = len(source.shape), source.shape[time]
    if sorted((time, batch)) != [0, 1] or lengths.dtype != "int64":
        raise c.decline("ReverseSequence over other axes than the first two")
    size = extent.as_int()
    count: Prim = Extent((), "int64", dim=extent) if size is None else scalar(size, "int64")
    reason = f"ReverseSequence: a length is outside of [0, {extent}]"

    def fn(m: Any, values: Sequence[Any]) -> Any:
        t, length, n = m.share(values[0]), m.share(values[1]), values[2]
        zero = m.const(0, "int64")
        fine = m.share(m.land(m.le(zero, length), m.le(length, n)))
        m.require(fine, reason)
        back = m.sub(m.sub(length, m.const(1, "int64")), t)
        return m.select(m.land(fine, m.lt(t, length)), back, t)

    lengths = reshape(lengths, tuple(d if k == batch else Dim.of(1) for k, d in enumerate(source.shape)))
    along = tuple(d if k == time else Dim.of(1) for k, d in enumerate(source.shape))
    both = tuple(d if k in (time, batch) else Dim.of(1) for k, d in enumerate(source.shape))
    operands = (Position(along, "int64", axis=time), lengths, count)
    where = Point(both, "int64", key=f"reversed<{reason}>", operands=operands, fn=fn, cost=8)

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:time], at[0], *ix[time + 1:])

    return [Pick(source.shape, source.dtype, source=source, indices=(where,), extents=(extent,), pull=pull,
                 key=f"reversed[{time},{rank}]")]


def lower_one_hot(c: NodeContext) -> list[Prim]:
    """values: [off, on]. An index outside of [-depth, depth) has no place that is on."""
    index, depth, values = c.arg(0), c.constant(1), c.arg(2)
    if depth is None or index.dtype not in ("int32", "int64", "float32", "float64"):
        raise c.decline(f"OneHot of a depth that is not constant, or of indices of {index.dtype}")
    axis, size = int(c.attr("axis", -1)) % (len(index.shape) + 1), int(depth.reshape(-1)[0])
    if index.dtype != "int64":
        index = point("Cast", [index], "int64", attrs={"to": 7})
    shape = (*index.shape[:axis], Dim.of(size), *index.shape[axis:])
    index = reshape(index, (*index.shape[:axis], Dim.of(1), *index.shape[axis:]))
    behind = point("Add", [index, scalar(size, "int64")], "int64")
    index = point("Where", [point("Less", [index, scalar(0, "int64")], "bool"), behind, index], "int64")
    along = tuple(d if k == axis else Dim.of(1) for k, d in enumerate(shape))
    here = point("Equal", [index, Position(along, "int64", axis=axis)], "bool")
    off, on = (reshape(take_range(values, 0, k, 1, Dim.of(1)), ()) for k in (0, 1))
    return [point("Where", [here, on, off], values.dtype)]


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first, step, count) of the evenly spaced runs that `places` consist of, the longest ones from the left."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(places):
        step = places[at + 1] - places[at] if at + 1 < len(places) else 1
        end = at + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        if end == at + 2 and end < len(places):  # two alone are no run: the second may begin a longer one
            end, step = at + 1, 1
        found.append((places[at], step, end - at))
        at = end
    return found
