"""Integers and truths as exporters compute with them: positions, comparisons of them, masks put together, targets of
Expand, and places that are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

COMPARED = ("LessOrEqual", "GreaterOrEqual", "Less", "Greater", "Equal")


def _positions(g: Graph, size: int, x: str, axis: int) -> str | None:
    """0, 1, ... of an axis: a constant, or from the extent of x, counted from somewhere else now and then."""
    kind = np.int32 if g.rng.random() < 0.2 else np.int64
    if g.rng.random() < 0.4 or g.opset < 11:
        return g.const(np.arange(size), kind)
    dims = g.put("Shape", [x])
    end = dims and g.put("Gather", [dims, g.const(axis, np.int64)])
    row = end and g.put("Range", [g.const(0, np.int64), end, g.const(1, np.int64)])
    if row and g.rng.random() < 0.3:
        row = g.put("Add", [row, g.const(int(g.rng.integers(-3, 4)), np.int64)])
    return row and (g.put("Cast", [row], to=6) if kind == np.int32 else row)


def _turned(g: Graph, row: str, axes: list[int]) -> str | None:
    if g.opset >= 13:
        return g.put("Unsqueeze", [row, g.const(axes, np.int64)])
    return g.put("Unsqueeze", [row], axes=axes)


def _rule(g: Graph, rows: str, columns: str) -> str | None:
    """Which columns a row sees, as [rows, columns] of truths: a comparison of the two, of their distance, of what is
    left of them by a division."""
    column, row = _turned(g, rows, [1]), _turned(g, columns, [0])
    if not column or not row:
        return None
    kind, dtype = int(g.rng.integers(5)), g.values[rows].dtype
    op = str(g.rng.choice(COMPARED))
    if op.endswith("OrEqual") and g.opset < 12:
        op = "Less"
    if kind == 0:
        return g.put(op, [row, column] if g.rng.random() < 0.5 else [column, row])
    if kind == 1:
        far = g.put("Sub", [column, row])
        far = far and (g.put("Abs", [far]) if g.rng.random() < 0.5 else far)
        return far and g.put(op, [far, g.const(int(g.rng.integers(0, 9)), dtype)])
    step = g.const(int(g.rng.integers(2, 6)), dtype)
    parts = [g.put("Div" if kind == 2 else "Mod", [v, step]) for v in (column, row)]
    if kind < 4:
        return parts[0] and parts[1] and g.put("Equal", [parts[0], parts[1]])
    return parts[1] and g.put("Equal", [parts[1], g.const(0, dtype)])


def _mask(g: Graph, x: str) -> str | None:
    """Two rules of the last two axes of x, by And, Or and Not."""
    rows, columns = (_positions(g, g.values[x].shape[k], x, k) for k in (-2, -1))
    if not rows or not columns or g.values[rows].dtype != g.values[columns].dtype:
        return None
    made = _rule(g, rows, columns)
    for _ in range(int(g.rng.integers(0, 3))):
        other = made and _rule(g, rows, columns)
        other = other and (g.put("Not", [other]) if g.rng.random() < 0.3 else other)
        pair = [made or "", other or ""]
        made = other and g.put(str(g.rng.choice(["And", "Or", "Xor"])), pair if g.rng.random() < 0.5 else pair[::-1])
    return made


def masked(g: Graph) -> None:
    """Some of the last two axes left out: by Where, or by sums with 0 and a low number, or by a product."""
    x = g.pick("f", 2)
    if x is None or not g.values[x].size:
        return
    made, dtype = _mask(g, x), g.values[x].dtype
    kind = int(helper.np_dtype_to_tensor_dtype(dtype))
    if made is None:
        return
    if g.values[x].ndim > 2 and g.rng.random() < 0.5:
        made = _turned(g, made, [0] * (g.values[x].ndim == 3) or [0, 1])
        made = made and expanded(g, made, x)
    low = np.array(np.finfo(dtype).min if g.rng.random() < 0.4 else -1e4, dtype)
    way = int(g.rng.integers(5))
    if made is None:
        return
    if way == 0:
        g.put("Where", [made, x, g.const(low)])
    elif way == 1:
        hidden = g.put("Where", [made, g.const(0, dtype), g.const(low)])
        if hidden:
            g.put("Add", [x, hidden])
    elif way == 2:
        number = g.put("Cast", [made], to=kind)
        rest = number and g.put("Sub", [g.const(1, dtype), number])
        rest = rest and g.put("Mul", [rest, g.const(-1e4, dtype)])
        if rest:
            g.put("Add", [x, rest])
    elif way == 3:
        number = g.put("Cast", [made], to=kind)
        if number:
            g.put("Mul", [x, number])
    else:
        turned = g.put("Not", [made])
        if turned:
            g.put("Where", [turned, g.const(0, dtype), x])


def expanded(g: Graph, x: str, like: str) -> str | None:
    """x brought to the extents of `like`, -1 keeping its own: torch's expand, Where(target == -1, 1, target)."""
    shape, mine = g.values[like].shape, g.values[x].shape
    if g.opset < 9 or len(shape) != len(mine):
        return x
    kept = np.array([-1 if b in (a, 1) and g.rng.random() < 0.4 else b for a, b in zip(mine, shape, strict=True)])
    if g.rng.random() < 0.5:
        dims = g.put("Shape", [like])
        parts = [g.const([-1], np.int64) if k < 0 else dims and g.put("Gather", [dims, g.const([i], np.int64)])
                 for i, k in enumerate(kept)]
        target = g.put("Concat", [str(p) for p in parts], axis=0) if all(parts) else None
    else:
        target = g.const(kept, np.int64)
    if not target:
        return None
    ones = g.put("ConstantOfShape", [g.const([len(shape)], np.int64)],
                 value=numpy_helper.from_array(np.array([1], np.int64)))
    minus = ones and g.put("Mul", [ones, g.const(-1, np.int64)])
    same = minus and g.put("Equal", [target, minus])
    chosen = same and g.put("Where", [same, ones or "", target])
    return chosen and g.put("Expand", [x, chosen])


def spread(g: Graph) -> None:
    """A value brought to more rows by the target that Where has made."""
    x = g.pick(rank=1)
    if x is None or not g.values[x].size or g.values[x].ndim > 4:
        return
    first = _turned(g, x, [0])
    if first:
        shape = (int(g.rng.choice([1, 2, 3])), *g.values[x].shape)
        expanded(g, first, g.const(np.zeros(shape), g.values[x].dtype))


def counted(g: Graph) -> None:
    """Positions of what a mask keeps: running sums of an input of zeros and ones, less one, and rows of a table."""
    if g.opset < 11:
        return
    shape = (int(g.rng.choice([1, 2])), g.shape[-1] or 3)
    kind = np.int32 if g.rng.random() < 0.3 else np.int64
    given = g.input(np.asarray(g.rng.random(shape) < 0.7).astype(kind))
    axis = g.const(int(g.rng.choice([1, -1])), np.int32 if g.rng.random() < 0.5 else np.int64)
    made = g.put("CumSum", [given, axis])
    made = made and g.put("Sub", [made, g.const(1, kind)])
    zero = made and g.put("Equal", [given, g.const(0, kind)])
    made = zero and g.put("Where", [zero, g.const(1, kind), made or ""])
    width = int(g.rng.choice([4, 16]))
    if made:
        g.put("Gather", [g.const(g.rng.standard_normal((max(shape[1], 2) + 1, width)), np.float32), made])


def looked_up(g: Graph) -> None:
    """Places that are computed: shifted, clipped, turned, in one or more columns; rows of a value or of a constant."""
    x = g.pick("f", 2)
    if x is None or not g.values[x].size or g.opset < 12:
        return
    rows = g.values[x].shape[0]
    row = g.const(np.arange(int(g.rng.integers(1, 6))), np.int64) if g.rng.random() < 0.5 else \
        g.input(np.asarray(g.rng.integers(0, rows, size=int(g.rng.integers(1, 6)))))
    made = g.put("Add", [row, g.const(int(g.rng.integers(-2, 3)), np.int64)])
    made = made and g.put("Clip", [made, g.const(0, np.int64), g.const(rows - 1, np.int64)])
    if made and g.rng.random() < 0.4:
        made = g.put("Reshape", [made, g.const([-1, 1], np.int64)])
    if not made:
        return
    if g.rng.random() < 0.6 or g.values[made].ndim == 1:
        g.put("Gather", [x, made], axis=0)
    else:
        g.put("GatherND", [x, made])


def angles(g: Graph) -> None:
    """Sines and cosines of positions times frequencies, each frequency twice, and a value turned by them."""
    x = g.pick("f", 3)
    if x is None or g.values[x].dtype == np.float64 or g.values[x].shape[-1] % 2 or not g.values[x].size:
        return
    if g.opset < 11 or not g.finite(x, 1e3):
        return
    value = g.values[x]
    length, width = value.shape[-2:]
    half = width // 2
    steps = g.const(1e4 ** -(np.arange(half) / half), np.float32)
    row = _positions(g, length, x, value.ndim - 2)
    column = row and _turned(g, row, [1])
    column = column and g.put("Cast", [column], to=1)
    angle = column and g.put("Mul", [column, steps])
    angle = angle and g.put("Concat", [angle, angle], axis=-1)
    tables = [g.put(op, [angle]) for op in ("Cos", "Sin")] if angle else []
    kind = int(helper.np_dtype_to_tensor_dtype(value.dtype))
    tables = [t and (g.put("Cast", [t], to=kind) if value.dtype != np.float32 else t) for t in tables]
    tables = [t and (_turned(g, t, [0]) if g.rng.random() < 0.5 else t) for t in tables]
    ends = [g.put("Slice", [x, *(g.const([n], np.int64) for n in (a, b, value.ndim - 1))])
            for a, b in ((half, 2**62), (0, half))]
    if not tables or not all(tables) or not all(ends):
        return
    minus = g.put("Neg", [str(ends[0])])
    turned = minus and g.put("Concat", [minus, str(ends[1])], axis=-1)
    parts = [turned and g.put("Mul", [v, str(t)]) for v, t in zip((x, turned or ""), tables, strict=True)]
    if all(parts):
        g.put("Add", [str(p) for p in parts])


STEPS = (masked, masked, masked, spread, counted, looked_up, angles)
