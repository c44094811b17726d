"""Places that are data: Gather and Scatter in all their forms, OneHot, TopK, and extents that are data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def _indices(g: Graph, array: np.ndarray) -> str:
    """A constant, or an input of the model."""
    kind = np.int32 if g.rng.random() < 0.3 else np.int64
    return g.const(array, kind) if g.rng.random() < 0.7 else g.input(array.astype(kind))


def gather(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None:
        return
    rank = g.values[x].ndim
    axis = int(g.rng.integers(rank))
    size = g.values[x].shape[axis]
    if size:
        low = -size if g.opset >= 11 else 0
        shape = [[], [3], [2, 2], [0]][int(g.rng.choice(4, p=[0.3, 0.35, 0.3, 0.05]))]
        g.add("Gather", [x, _indices(g, g.rng.integers(low, size, size=shape))],
              axis=axis - rank if g.rng.random() < 0.3 else axis)


def gather_elements(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None or g.opset < 11:
        return
    axis = int(g.rng.integers(g.values[x].ndim))
    shape = list(g.values[x].shape)
    if size := shape[axis]:
        shape[axis] = int(g.rng.integers(1, 5))
        g.add("GatherElements", [x, _indices(g, g.rng.integers(-size, size, size=shape))],
              axis=axis - len(shape) if g.rng.random() < 0.3 else axis)


def gather_nd(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None or g.opset < 11 or 0 in g.values[x].shape:
        return
    shape = g.values[x].shape
    batch = int(len(shape) > 2 and g.opset >= 12 and g.rng.random() < 0.3)
    depth = int(g.rng.integers(1, len(shape) - batch + 1))
    lead = [*shape[:batch], *([3] if g.rng.random() < 0.5 else [2, 3])]
    columns = [g.rng.integers(-shape[batch + k], shape[batch + k], size=lead) for k in range(depth)]
    more: dict[str, Any] = {"batch_dims": batch} if g.opset >= 12 else {}
    g.add("GatherND", [x, _indices(g, np.stack(columns, -1))], **more)


def scatter(g: Graph) -> None:
    """To places that differ, or with sums of those that do not."""
    if (x := g.pick("fi", 1)) is None or g.opset < 11 or 0 in g.values[x].shape:
        return
    value = g.values[x]
    sums = g.opset >= 16 and value.dtype.kind == "f" and g.rng.random() < 0.3
    more: dict[str, Any] = {"reduction": "add"} if sums else {}
    if g.rng.random() < 0.5:
        axis = int(g.rng.integers(value.ndim))
        count = int(g.rng.integers(1, value.shape[axis] + 1))
        shape = [count if k == axis else d for k, d in enumerate(value.shape)]
        places = g.rng.permutation(value.shape[axis])[:count]
        full = np.broadcast_to(places.reshape([-1 if k == axis else 1 for k in range(value.ndim)]), shape)
        g.add("ScatterElements", [x, g.const(full, np.int64), g.const(g.random(shape, value.dtype))], axis=axis, **more)
    else:
        count = int(g.rng.integers(1, value.shape[0] + 1))
        rows = g.rng.permutation(value.shape[0])[:count, None]
        g.add("ScatterND", [x, g.const(rows, np.int64), g.const(g.random((count, *value.shape[1:]), value.dtype))],
              **more)


def one_hot(g: Graph) -> None:
    shape = [d for d in g.shape[:2] if d] or [3]
    pair = g.const(g.random([2], np.dtype(np.float32)))
    if g.opset >= 9:
        ids = _indices(g, g.rng.integers(-7 if g.opset >= 11 else 0, 7, size=shape))
        made = g.put("OneHot", [ids, g.const(7, np.int64), pair], axis=int(g.rng.integers(-1, len(shape) + 1)))
        if made and g.rng.random() < 0.6:
            g.put("MatMul", [made, g.const(g.rng.standard_normal((g.values[made].shape[-1], 5)), np.float32)])


def largest(g: Graph) -> None:
    """TopK, of which one result may be left out."""
    if (x := g.pick("f", 1)) is None or g.opset < 10:
        return
    axis = int(g.rng.integers(g.values[x].ndim))
    count = int(g.rng.integers(0, g.values[x].shape[axis] + 1))
    more: dict[str, Any] = {"largest": int(g.rng.random() < 0.5)} if g.opset >= 11 else {}
    if len(np.unique(g.values[x])) == g.values[x].size:  # ties have no one order
        g.settled = True
        wanted = [[True, True], [True, False], [False, True]][int(g.rng.integers(3))]
        g.add("TopK", [x, g.const([count], np.int64)], wanted,
              axis=axis - g.values[x].ndim if g.opset >= 11 and g.rng.random() < 0.3 else axis, **more)


def found(g: Graph) -> None:
    """NonZero, Compress: how many there are is data."""
    if g.opset < 9 or g.rng.random() < 0.5:
        if (x := g.pick("f", 1)) is None:
            return
        axis = int(g.rng.integers(g.values[x].ndim))
        keep = np.asarray(g.rng.random(g.values[x].shape[axis]) < 0.6)
        made = g.put("Compress", [x, g.input(keep)], axis=axis) if g.opset >= 9 else None
    else:
        x = g.pick("b", 1)
        made = x and g.put("NonZero", [x])
        made = made and g.put("Transpose", [made], perm=[1, 0])
        made = made and g.put("Cast", [made], to=1)
    if made:
        g.settled = True
        g.put("Sigmoid", [made])


def squares(g: Graph) -> None:
    """EyeLike, and an image read at places that a grid says (linearly: the nearest one may be another by rounding)."""
    if g.rng.random() < 0.5 and g.opset >= 9:
        x = g.pick("f", 2)
        if x is not None and g.values[x].ndim == 2:
            made = g.put("EyeLike", [x], k=int(g.rng.integers(-2, 3)),
                         dtype=int(helper.np_dtype_to_tensor_dtype(g.values[x].dtype)))
            if made:
                g.put("Add", [x, made])
        return
    x = g.pick("f", 4)
    if x is None or g.opset < 16 or g.values[x].ndim != 4 or g.values[x].dtype != np.float32 or not g.values[x].size:
        return
    batch, channels = g.values[x].shape[:2]
    if g.opset >= 20 and g.rng.random() < 0.5:
        grid = g.put("AffineGrid", [g.const(g.rng.standard_normal((batch, 2, 3)) * 0.5, np.float32),
                                    g.const([batch, channels, 4, 5], np.int64)])
    else:
        grid = g.const(g.rng.random((batch, 4, 5, 2)) * 2.4 - 1.2, np.float32)
    if grid:
        g.put("GridSample", [x, grid], mode="linear" if g.opset >= 20 else "bilinear",
              padding_mode=str(g.rng.choice(["zeros", "border", "reflection"])),
              align_corners=int(g.rng.random() < 0.5))


STEPS = (gather, gather, gather, gather_elements, gather_nd, scatter, one_hot, largest, found, squares)
