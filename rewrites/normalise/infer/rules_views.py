"""Shapes and contents of ops that move, cut or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer import arith
from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.rewrites.normalise.infer.info import (
    CONTENT_TYPES,
    CONTENTS_LIMIT,
    Contents,
    Context,
    Info,
    Rule,
    Shape,
    contents_array,
    static_sizes,
)
from tilegraph.spec.dims import Dim

_ONE, _ZERO = Dim.of(1), Dim.of(0)


def _reshaped(contents: Contents | None, shape: Shape | None) -> Contents | None:
    sizes = static_sizes(shape)
    if contents is None or sizes is None or contents.size != math.prod(sizes):
        return None
    return contents.reshape(sizes)


def reshape(c: Context) -> Sequence[Info]:
    data, wanted = c.input(0), c.input(1)
    target = wanted.dims()
    if target is None:
        static = static_sizes(wanted.shape)
        return [Info(data.dtype, (None,) * static[0] if static is not None and len(static) == 1 else None)]
    shape = reshaped_shape(data.shape, target, bool(c.attr("allowzero", 0)))
    return [Info(data.dtype, shape, _reshaped(data.contents, shape))]


def reshaped_shape(source: Shape | None, target: Sequence[MaybeDim], allow_zero: bool) -> Shape:
    """The result of Reshape; `target` holds extents, 0 (copy, unless allowed as a size) and -1 (the rest).

    One extent that is -1 or unknown follows from the number of elements, after what both sides share is cancelled.
    """
    result: list[MaybeDim] = list(target)
    open_axes: list[int] = []
    copied: set[int] = set()
    for i, dim in enumerate(target):
        if dim is not None and dim == 0 and not allow_zero:
            copied.add(i)
            result[i] = source[i] if source is not None and i < len(source) else None
        elif dim is None or dim == -1:
            open_axes.append(i)
            result[i] = None
    if len(open_axes) != 1 or source is None:
        return tuple(result)
    left = [d for i, d in enumerate(source) if i not in copied]
    right = [d for i, d in enumerate(result) if i not in copied and i != open_axes[0]]
    for dim in list(right):
        if dim is not None and dim in left:
            left.remove(dim)
            right.remove(dim)
    if None not in left and None not in right:
        total, known = (Dim.product(d for d in part if d is not None) for part in (left, right))
        if known != 0:
            result[open_axes[0]] = total if known == 1 else total // known
    return tuple(result)


def flatten(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype, (None, None))]
    axis = c.axis(1, len(data.shape))
    parts = (data.shape[:axis], data.shape[axis:])
    shape = tuple(None if None in p else Dim.product(d for d in p if d is not None) for p in parts)
    return [Info(data.dtype, shape, _reshaped(data.contents, shape))]


def squeeze(c: Context) -> Sequence[Info]:
    data, axes = c.input(0), c.axes(1)
    if data.shape is None or axes is None:
        return [Info(data.dtype)]
    rank = len(data.shape)
    if not axes:
        if any(d is None or not d.is_static for d in data.shape):
            return [Info(data.dtype)]
        axes = [i for i, d in enumerate(data.shape) if d is not None and d == 1]
    gone = {a + rank if a < 0 else a for a in axes}
    shape = tuple(d for i, d in enumerate(data.shape) if i not in gone)
    return [Info(data.dtype, shape, _reshaped(data.contents, shape))]


def unsqueeze(c: Context) -> Sequence[Info]:
    data, axes = c.input(0), c.axes(1)
    if data.shape is None or axes is None:
        return [Info(data.dtype)]
    rank = len(data.shape) + len(axes)
    places = {a + rank if a < 0 else a for a in axes}
    rest = iter(data.shape)
    shape = tuple(_ONE if i in places else next(rest) for i in range(rank))
    return [Info(data.dtype, shape, _reshaped(data.contents, shape))]


def transpose(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype)]
    perm = c.attr("perm") or tuple(reversed(range(len(data.shape))))
    contents = None if data.contents is None else data.contents.transpose(perm)
    return [Info(data.dtype, tuple(data.shape[p] for p in perm), contents)]


def concat(c: Context) -> Sequence[Info]:
    infos = [i if i is not None else Info() for i in c.inputs]
    dtype = next((i.dtype for i in infos if i.dtype is not None), None)
    shapes = [i.shape for i in infos if i.shape is not None]
    if len(shapes) != len(infos):
        return [Info(dtype)]
    rank = len(shapes[0])
    axis = c.axis(1, rank)
    dims: list[MaybeDim] = []
    for i in range(rank):
        column = [s[i] for s in shapes]
        if i == axis:
            dims.append(None if None in column else sum((d for d in column if d is not None), _ZERO))
        else:  # all equal in every valid run: take the most definite
            known = [d for d in column if d is not None]
            dims.append(min(known, key=_indefinite, default=None))
    contents = None
    parts = [_or_unknown(i) for i in infos]
    if dtype in CONTENT_TYPES and all(p is not None for p in parts) and sum(p.size for p in parts if p is not None) \
            <= CONTENTS_LIMIT:
        contents = np.concatenate([p for p in parts if p is not None], axis=axis)
    return [Info(dtype, tuple(dims), contents)]


def _indefinite(dim: Dim) -> int:
    """Numbers come before symbols, and those before expressions of them: what joins max(0, n-1)+1 and n has n."""
    return 0 if dim.is_static else 1 if dim.bare_symbol is not None else 2


def _or_unknown(info: Info) -> Contents | None:
    """The contents, or as many unknown elements when at least the shape is known and small."""
    if info.contents is not None:
        return info.contents
    sizes = static_sizes(info.shape)
    if sizes is None or math.prod(sizes) > CONTENTS_LIMIT:
        return None
    return np.full(sizes, None, dtype=object)


def slice_op(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype)]
    rank = len(data.shape)
    if "starts" in c.node.attributes:
        starts: list[MaybeDim] = [Dim.of(int(i)) for i in c.attr("starts")]
        ends: list[MaybeDim] = [Dim.of(int(i)) for i in c.attr("ends")]
        axes: list[int] | None = list(c.attr("axes", range(len(c.attr("starts")))))
        steps: list[int] | None = [1] * len(c.attr("starts"))
    else:
        count = static_sizes(c.input(1).shape)
        if count is None or len(count) != 1:
            return [Info(data.dtype, (None,) * rank)]
        axes = c.input(3).ints() if c.has(3) else list(range(count[0]))
        steps = c.input(4).ints() if c.has(4) else [1] * count[0]
        starts, ends = (c.input(i).dims() or [None] * count[0] for i in (1, 2))
    if axes is None:
        return [Info(data.dtype, (None,) * rank)]
    dims = list(data.shape)
    contents = data.contents
    for i, axis in enumerate(axes):
        axis += rank if axis < 0 else 0
        step = steps[i] if steps is not None else None
        start, end = starts[i], ends[i]
        dims[axis] = None if step is None else arith.slice_length(data.shape[axis], start, end, step)
        if contents is not None:
            known = start is not None and end is not None and start.is_static and end.is_static and step
            contents = None if not known or start is None or end is None or step is None else contents.take(
                arith.slice_indices(contents.shape[axis], start.value, end.value, step), axis=axis)
    return [Info(data.dtype, tuple(dims), contents)]


def split(c: Context) -> Sequence[Info]:
    data, count = c.input(0), len(c.node.outputs)
    if data.shape is None:
        return [Info(data.dtype) for _ in range(count)]
    axis = c.axis(0, len(data.shape))
    given = c.attr("split")
    sizes: list[MaybeDim]
    whole = data.shape[axis]
    if given is not None:
        sizes = [Dim.of(int(s)) for s in given]
    elif c.has(1):
        sizes = c.input(1).dims() or [None] * count
    elif whole is None:
        sizes = [None] * count
    elif whole.is_static:
        chunk = -(-whole.value // count)
        sizes = [Dim.of(max(min(chunk, whole.value - i * chunk), 0)) for i in range(count)]
    else:
        sizes = [whole.exact_div(count)] * count
    if len(sizes) != count:
        sizes = [None] * count
    infos = []
    begin: int | None = 0
    for size in sizes:
        contents = None
        end = None if begin is None or size is None or not size.is_static else begin + size.value
        if data.contents is not None and begin is not None and end is not None:
            contents = data.contents.take(range(begin, min(end, data.contents.shape[axis])), axis=axis)
        begin = end
        infos.append(Info(data.dtype, (*data.shape[:axis], size, *data.shape[axis + 1:]), contents))
    return infos


def gather(c: Context) -> Sequence[Info]:
    data, indices = c.input(0), c.input(1)
    if data.shape is None or indices.shape is None:
        return [Info(data.dtype)]
    axis = c.axis(0, len(data.shape))
    contents = None
    if data.contents is not None and (wanted := indices.ints()) is not None:
        size = data.contents.shape[axis]
        if all(-size <= i < size for i in wanted):
            assert indices.contents is not None
            taken = data.contents.take(np.array(wanted, np.int64).reshape(indices.contents.shape), axis=axis)
            contents = np.array(taken, dtype=object)  # a single element comes back bare
    elif data.contents is not None and data.contents.ndim == 1 and indices.contents is not None:
        first = data.contents[0] if data.contents.size else None
        if first is not None and all(e == first for e in data.contents):  # whichever index, the same element
            contents = contents_array([first] * indices.contents.size, indices.contents.shape)
    return [Info(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1:]), contents)]


def gather_elements(c: Context) -> Sequence[Info]:
    return [Info(c.input(0).dtype, c.input(1).shape)]


def gather_nd(c: Context) -> Sequence[Info]:
    data, indices = c.input(0), c.input(1)
    if data.shape is None or not indices.shape:
        return [Info(data.dtype)]
    depth = indices.shape[-1]
    if depth is None or not depth.is_static:
        return [Info(data.dtype)]
    return [Info(data.dtype, (*indices.shape[:-1], *data.shape[int(c.attr("batch_dims", 0)) + depth.value:]))]


def expand(c: Context) -> Sequence[Info]:
    data, target = c.input(0), c.input(1).dims()
    if target is None:
        count = static_sizes(c.input(1).shape)
        if count is None or len(count) != 1:
            return [Info(data.dtype)]
        target = [None] * count[0]
    shape = arith.broadcast(data.shape, target)
    return [Info(data.dtype, shape, _broadcast_contents(data.contents, shape))]


def _broadcast_contents(contents: Contents | None, shape: Shape | None) -> Contents | None:
    sizes = static_sizes(shape)
    if contents is None or sizes is None or math.prod(sizes) > CONTENTS_LIMIT:
        return None
    return np.broadcast_to(contents, sizes).copy()


def tile(c: Context) -> Sequence[Info]:
    data, repeats = c.input(0), c.input(1).dims()
    if data.shape is None:
        return [Info(data.dtype)]
    if repeats is None or len(repeats) != len(data.shape):
        return [Info(data.dtype, (None,) * len(data.shape))]
    shape = tuple(None if d is None or r is None else d * r for d, r in zip(data.shape, repeats, strict=True))
    contents = None
    sizes = static_sizes(shape)
    if data.contents is not None and sizes is not None and math.prod(sizes) <= CONTENTS_LIMIT:
        contents = np.tile(data.contents, tuple(r.value for r in repeats if r is not None))
    return [Info(data.dtype, shape, contents)]


def pad(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype)]
    rank = len(data.shape)
    given = c.attr("pads")
    pads: list[MaybeDim] | None = [Dim.of(int(p)) for p in given] if given is not None else c.input(1).dims()
    axes = c.input(3).ints() if c.has(3) else list(range(rank))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return [Info(data.dtype, (None,) * rank)]
    dims = list(data.shape)
    for i, axis in enumerate(axes):
        dim, before, after = dims[axis], pads[i], pads[i + len(axes)]
        dims[axis] = None if dim is None or before is None or after is None else dim + before + after
    return [Info(data.dtype, tuple(dims))]


def top_k(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype), Info(ir.DataType.INT64)]
    axis = c.axis(-1, len(data.shape))
    given = c.attr("k")
    wanted = c.input(1).dims()
    k: MaybeDim = Dim.of(int(given)) if given is not None else wanted[0] if wanted else None
    shape = (*data.shape[:axis], k, *data.shape[axis + 1:])
    return [Info(data.dtype, shape), Info(ir.DataType.INT64, shape)]


RULES: dict[tuple[str, str], Rule] = {
    ("", op): rule
    for op, rule in {
        "Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Transpose": transpose,
        "Concat": concat, "Slice": slice_op, "Split": split, "Gather": gather, "GatherElements": gather_elements,
        "GatherND": gather_nd, "Expand": expand, "Tile": tile, "Pad": pad, "TopK": top_k,
    }.items()
}
