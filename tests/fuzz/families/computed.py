"""Shapes that the graph computes: Shape, its parts and sums, and what takes them as a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def _extent(g: Graph, x: str, axis: int) -> str | None:
    """One extent as a vector of one element, in one of three spellings."""
    kind = int(g.rng.integers(3))
    if kind == 0 and g.opset >= 15:
        return g.put("Shape", [x], start=axis, end=axis + 1)
    dims = g.put("Shape", [x])
    if kind == 1 or g.opset < 13:
        return dims and g.put("Gather", [dims, g.const([axis], np.int64)])
    one = dims and g.put("Gather", [dims, g.const(axis, np.int64)])
    return one and g.put("Unsqueeze", [one, g.const([0], np.int64)])


def computed_reshape(g: Graph) -> None:
    """Two axes as one, or the last one in two, with the other extents read off the value."""
    x = g.pick(rank=2)
    if x is None:
        return
    shape = g.values[x].shape
    parts: list[str | None] = [_extent(g, x, k) for k in range(len(shape) - 2)]
    if g.rng.random() < 0.5:
        parts.append(g.const([-1], np.int64))
    else:
        last = [_extent(g, x, k) for k in (len(shape) - 2, len(shape) - 1)]
        parts.append(g.put("Mul", [str(v) for v in last]) if all(last) else None)
    if all(parts):
        target = g.put("Concat", [str(p) for p in parts], axis=0)
        if target:
            g.put("Reshape", [x, target])


def filled(g: Graph) -> None:
    """A constant of a value's shape, joined with it: ConstantOfShape, Expand to it, or ones that run."""
    x = g.pick("fi", 1)
    if x is None:
        return
    value, kind = g.values[x], int(g.rng.integers(3))
    dims = g.put("Shape", [x])
    if not dims:
        return
    if kind == 0 and g.opset >= 9:
        fill = numpy_helper.from_array(np.array([3], value.dtype))
        made = g.put("ConstantOfShape", [dims], value=fill)
        if made:
            g.put("Add" if value.dtype.kind == "f" else "Max", [made, x])
    elif kind == 1 and g.opset >= 8:
        made = g.put("Expand", [g.const(g.random([1], value.dtype)), dims])
        if made:
            g.put("Max", [x, made])
    elif g.opset >= 11:
        one = g.put("Gather", [dims, g.const(-1, np.int64)])
        row = one and g.put("Range", [g.const(0, np.int64), one, g.const(1, np.int64)])
        number = row and g.put("Cast", [row], to=helper.np_dtype_to_tensor_dtype(value.dtype))
        if number and value.dtype != np.float16:
            g.put("Mul", [x, number])


def computed_slice(g: Graph) -> None:
    """A table cut to a value's extent, or a value cut at half of its own."""
    x = g.pick("f", 2)
    if x is None or g.opset < 10:
        return
    value = g.values[x]
    end = _extent(g, x, value.ndim - 2)
    if not end:
        return
    if g.rng.random() < 0.6:
        table = g.const(g.rng.standard_normal((70, value.shape[-1])), value.dtype)
        rows = g.put("Slice", [table, g.const([0], np.int64), end, g.const([0], np.int64)])
        if rows:
            g.put("Add", [x, rows])
    else:
        half = g.put("Div", [end, g.const([2], np.int64)])
        axis = g.const([value.ndim - 2], np.int64)
        if half:
            upper = g.put("Slice", [x, half, g.const([2**62], np.int64), axis])
            lower = g.put("Slice", [x, g.const([0], np.int64), half, axis])
            if upper and lower:
                g.put("Concat", [upper, lower], axis=value.ndim - 2)


def grown(g: Graph) -> None:
    """The mask of a decoder: Range, Unsqueeze and a comparison, or Trilu of ones, of a value's extent."""
    x = g.pick("f", 2)
    if x is None or g.opset < 14:
        return
    end = _extent(g, x, g.values[x].ndim - 1)
    size = end and g.put("Squeeze", [end])
    if not size or not end:
        return
    dtype = g.values[x].dtype
    if g.rng.random() < 0.5:
        row = g.put("Range", [g.const(0, np.int64), size, g.const(1, np.int64)])
        column = row and g.put("Unsqueeze", [row, g.const([1], np.int64)])
        keep = column and g.put("LessOrEqual", [row or "", column])
    else:
        square = g.put("Concat", [end, end], axis=0)
        ones = square and g.put("ConstantOfShape", [square], value=numpy_helper.from_array(np.array([1.0], dtype)))
        lower = ones and g.put("Trilu", [ones], upper=0)
        keep = lower and g.put("Cast", [lower], to=9)
    if keep and g.values[x].shape[-2] in (1, g.values[x].shape[-1]):
        g.put("Where", [keep, x, g.const(-1e4, dtype)])


def counted(g: Graph) -> None:
    """Divided by how many numbers there are."""
    x = g.pick("f", 1)
    if x is None or not g.values[x].size or g.values[x].dtype == np.float16:
        return
    count = g.put("Size", [x])
    number = count and g.put("Cast", [count], to=int(helper.np_dtype_to_tensor_dtype(g.values[x].dtype)))
    if number:
        g.put("Div", [x, number])


STEPS = (counted, computed_reshape, computed_reshape, filled, filled, computed_slice, grown)
