"""Nodes that only move elements, as index maps: no data is copied inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilegraph.ops.broadcast import project
from tilegraph.ops.index import Ix, reshape_indices
from tilegraph.ops.lower.base import NodeContext, view
from tilegraph.ops.prims import Concat, Const, Input, Prim
from tilegraph.spec.dims import Dim, Shape


def reshape(source: Prim, shape: Shape) -> Prim:
    """`source` with another shape of the same number of elements."""
    if shape == source.shape:
        return source
    if isinstance(source, (Input, Const)):
        return replace(source, shape=shape)
    before = source.shape
    return view(source, shape, lambda ix: reshape_indices(ix, shape, before), f"reshape{list(map(str, shape))}")


def lower_reshape(c: NodeContext) -> list[Prim]:
    shape, before = c.output_shape(), c.arg(0).shape
    if Dim.product(shape) != Dim.product(before):
        # An extent of a kernel's input is one number there, whatever expression it is called by.
        if Dim.product(Dim.of(str(d)) for d in shape) == Dim.product(Dim.of(str(d)) for d in before):
            raise c.decline(f"the extents of {_show(shape)} do not follow from {_show(before)}, which is all that a "
                            "kernel knows")
        raise c.decline(f"cannot show that {_show(before)} and {_show(shape)} have as many elements")
    return [reshape(c.arg(0), shape)]


def transpose(source: Prim, perm: Sequence[int]) -> Prim:
    shape = tuple(source.shape[p] for p in perm)
    inverse = [list(perm).index(k) for k in range(len(perm))]
    return view(source, shape, lambda ix: tuple(ix[inverse[k]] for k in range(len(inverse))), f"transpose{list(perm)}")


def lower_transpose(c: NodeContext) -> list[Prim]:
    rank = len(c.arg(0).shape)
    perm = c.attr("perm") or list(reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        raise c.decline(f"perm {[int(p) for p in perm]} is no order of the {rank} axes of {_show(c.arg(0).shape)}")
    return [transpose(c.arg(0), [int(p) for p in perm])]


def expand(source: Prim, shape: Shape) -> Prim:
    """`source` broadcast to `shape`."""
    if shape == source.shape:
        return source
    before = source.shape
    return view(source, shape, lambda ix: project(ix, before), f"expand{list(map(str, shape))}")


def lower_expand(c: NodeContext) -> list[Prim]:
    shape = c.output_shape()
    source = c.arg(0)
    if len(shape) < len(source.shape):
        raise c.decline("the inferred shape has too few dims")
    for have, want in zip(source.shape, shape[len(shape) - len(source.shape):], strict=True):
        if have != 1 and have != want:
            raise c.decline(f"extents {have} and {want} are not equal for certain")
    return [expand(source, shape)]


def take_range(source: Prim, axis: int, start: int | Dim, step: int, extent: Dim) -> Prim:
    """Every `step`-th element of one axis from `start`."""
    if start == 0 and step == 1 and extent == source.shape[axis]:
        return source
    shape = (*source.shape[:axis], extent, *source.shape[axis + 1:])

    def pull(ix: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:axis], ix[axis] * step + start, *ix[axis + 1:])

    return view(source, shape, pull, f"range[{axis},{start},{step},{extent}]")


def lower_slice(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    rank = len(source.shape)
    starts, ends = c.ints(1, "starts"), c.ints(2, "ends")
    if starts is None or ends is None:
        raise c.decline("Slice lacks starts or ends")
    axes = c.ints(3, "axes")
    steps = c.ints(4)
    result = source
    for k, axis in enumerate(axes if axes is not None else range(len(starts))):
        axis %= rank
        step = 1 if steps is None else steps[k]
        result = _slice_axis(c, result, axis, starts[k], ends[k], step)
    return [result]


def _slice_axis(c: NodeContext, source: Prim, axis: int, start: int, end: int, step: int) -> Prim:
    extent = source.shape[axis]
    size = extent.as_int()
    if size is not None:
        kept = range(*slice(start, end if end >= -size or step > 0 else None, step).indices(size))
        if step < 0 and end < -size:
            kept = range(min(start if start >= 0 else start + size, size - 1), -1, step)
        first = kept[0] if len(kept) else 0
        return take_range(source, axis, first, step, Dim.of(len(kept)))
    inferred = c.output_shape()[axis]
    if step == 1 and start == 0 and end >= (1 << 31) - 1:
        return source
    left = extent - start if end >= (1 << 31) - 1 else extent + (end - start) if end < 0 else None
    if step == 1 and start >= 0 and left is not None and all(count >= 0 for _, count in left.terms):
        return take_range(source, axis, start, 1, left)
    if step == 1 and start >= 0 and inferred == (extent - start) and end >= (1 << 31) - 1:
        # The model itself is only valid where the extent is at least `start`; a smaller one gives a negative size.
        raise c.decline("the length of the slice depends on a symbolic extent that may be too small")
    raise c.decline(f"a slice of the symbolic extent {extent}")


def lower_split(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    axis = int(c.attr("axis", 0)) % len(source.shape)
    sizes = c.ints(1, "split")
    if sizes is None:
        total = source.shape[axis].as_int()
        count = len(c.node.outputs)
        if total is None:
            raise c.decline(f"Split of the symbolic extent {source.shape[axis]}")
        chunk = -(-total // count)
        sizes = [min(chunk, total - k * chunk) for k in range(count)]
    start = 0
    parts: list[Prim] = []
    for size in sizes:
        parts.append(take_range(source, axis, start, 1, Dim.of(size)))
        start += size
    if source.shape[axis] != start:
        raise c.decline(f"the parts of Split add to {start}, not to {source.shape[axis]}")
    return parts


def lower_concat(c: NodeContext) -> list[Prim]:
    parts = [c.arg(i) for i in range(len(c.node.inputs))]
    axis = int(c.attr("axis", 0)) % len(parts[0].shape)
    parts = [p for p in parts if p.shape[axis] != 0] or parts[:1]
    for other in parts[1:]:
        for k, (a, b) in enumerate(zip(parts[0].shape, other.shape, strict=True)):
            if k != axis and a != b:
                raise c.decline(f"extents {a} and {b} of axis {k} are not equal for certain")
    return [concat(parts, axis)]


def concat(parts: Sequence[Prim], axis: int) -> Prim:
    """`parts`, equal in all other extents, side by side along `axis`."""
    if len(parts) == 1:
        return parts[0]
    extent = sum((p.shape[axis] for p in parts), Dim.of(0))
    shape = (*parts[0].shape[:axis], extent, *parts[0].shape[axis + 1:])
    return Concat(shape, parts[0].dtype, parts=tuple(parts), axis=axis)


def lower_squeeze(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    axes = c.ints(1, "axes")
    rank = len(source.shape)
    if axes is None:
        if any(not d.is_static for d in source.shape):
            raise c.decline("Squeeze without axes of a symbolic shape")
        drop = {k for k, d in enumerate(source.shape) if d == 1}
    else:
        drop = {a % rank for a in axes}
    if any(source.shape[k] != 1 for k in drop):
        raise c.decline("a squeezed dim is not 1 for certain")
    return [reshape(source, tuple(d for k, d in enumerate(source.shape) if k not in drop))]


def lower_unsqueeze(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    axes = c.ints(1, "axes") or []
    rank = len(source.shape) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(source.shape)
    return [reshape(source, tuple(Dim.of(1) if k in new else next(rest) for k in range(rank)))]


def lower_flatten(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    rank = len(source.shape)
    axis = int(c.attr("axis", 1))
    axis = axis + rank if axis < 0 else axis
    return [reshape(source, (Dim.product(source.shape[:axis]), Dim.product(source.shape[axis:])))]


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"

