"""Operators that only move elements: other shapes, other orders, parts, sums of parts, borders, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.values import SIZES

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def reshape(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None:
        return
    shape = list(g.values[x].shape)
    k = int(g.rng.integers(len(shape)))
    if g.rng.random() < 0.5 and len(shape) > 1:
        k = int(g.rng.integers(len(shape) - 1))
        target = [*([0] * k), -1, *shape[k + 2:]]
    else:
        factors = [f for f in (1, 2, 4, 8) if shape[k] % f == 0]
        target = [*([0] * k), -1, int(g.rng.choice(factors)), *shape[k + 1:]]
    if g.opset >= 14 and g.rng.random() < 0.3:  # 0 is an extent, not a copy of the operand's
        target = [*shape[:k], *target[k:]]
        if 0 in shape:
            target = [0, *(int(d) for d in g.rng.integers(0, 4, size=int(g.rng.integers(0, 3))))]
        g.add("Reshape", [x, g.const(target, np.int64)], allowzero=1)
        return
    g.add("Reshape", [x, g.const(target, np.int64)])


def flatten(g: Graph) -> None:
    if (x := g.pick(rank=1)) is not None:
        rank = g.values[x].ndim
        g.add("Flatten", [x], axis=int(g.rng.integers(-rank if g.opset >= 11 else 0, rank + 1)))


def transpose(g: Graph) -> None:
    if (x := g.pick(rank=2)) is not None:
        perm = [int(p) for p in g.rng.permutation(g.values[x].ndim)]
        more: dict[str, Any] = {} if g.rng.random() < 0.1 else {"perm": perm}
        g.add("Transpose", [x], **more)


def slices(g: Graph) -> None:
    """One axis, or two, with steps of either sign and ends beyond the axis."""
    if (x := g.pick(rank=1)) is None:
        return
    rank = g.values[x].ndim
    axes = [int(a) for a in g.rng.choice(rank, size=2 if rank > 1 and g.rng.random() < 0.3 else 1, replace=False)]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = g.values[x].shape[axis]
        step = int(g.rng.choice([1, 1, 1, 2, -1, -2])) if g.opset >= 10 else 1
        a, b = (int(n) for n in g.rng.integers(-size - 1, size + 2, size=2))
        if g.rng.random() < 0.3:  # one from the other side of an end
            a = int(g.rng.choice([-size - 1, -size, -1, size - 1, size, size + 1]))
        starts.append(a)
        ends.append(b if g.rng.random() < 0.7 else (2**62 if step > 0 else -(2**62)))
        steps.append(step)
    if g.opset >= 10 and g.rng.random() < 0.15:  # of the first axes, which need not be said
        count = len(axes)
        g.add("Slice", [x, *(g.const(p, np.int32 if g.rng.random() < 0.3 else np.int64)
                             for p in ([0] * count, [max(1, d - 1) for d in g.values[x].shape[:count]]))])
        return
    axes = [a - rank if g.rng.random() < 0.3 else a for a in axes]
    if g.opset < 10:
        g.add("Slice", [x], starts=starts, ends=ends, axes=axes)
    else:
        parts = [starts, ends, axes, steps]
        kind = np.int32 if g.rng.random() < 0.15 and max(map(abs, ends)) < 2**31 else np.int64
        g.add("Slice", [x, *(g.const(p, kind) for p in parts[:4 if max(steps) != min(steps) or steps[0] != 1 or
                                                                 g.rng.random() < 0.5 else 3])])


def concat(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None:
        return
    value = g.values[x]
    axis = int(g.rng.integers(value.ndim))
    fitting = [n for n, v in g.values.items() if v.dtype == value.dtype and v.ndim == value.ndim
               and all(a == b for k, (a, b) in enumerate(zip(v.shape, value.shape, strict=True)) if k != axis)]
    chosen = [str(n) for n in g.rng.choice(fitting, size=int(g.rng.integers(0, 4)))]
    g.add("Concat", [x, *chosen], axis=axis - value.ndim if g.opset >= 11 and g.rng.random() < 0.3 else axis)


def split(g: Graph) -> None:
    """In two uneven parts of which one may be empty, or in equal ones."""
    if (x := g.pick(rank=1)) is None:
        return
    axis = int(g.rng.integers(g.values[x].ndim))
    size = g.values[x].shape[axis]
    if size < 2:
        return
    if g.opset >= 11 and g.rng.random() < 0.3:
        axis -= g.values[x].ndim
    if g.rng.random() < 0.3:
        count = int(g.rng.choice([2, 3, 4]))
        more: dict[str, Any] = {"num_outputs": count} if g.opset >= 18 else {}
        g.add("Split", [x], count, axis=axis, **more)
        return
    first = int(g.rng.integers(0, size + 1))
    if g.opset < 13:
        g.add("Split", [x], 2, axis=axis, split=[first, size - first])
    else:
        g.add("Split", [x, g.const([first, size - first], np.int64)], 2, axis=axis)


def pad(g: Graph) -> None:
    if (x := g.pick(rank=1)) is None:
        return
    rank = g.values[x].ndim
    mode = str(g.rng.choice(["constant", "constant", "edge", "reflect", "wrap"]))
    some = g.opset >= 18 and g.rng.random() < 0.3
    axes = [int(g.rng.integers(-rank, rank))] if some else []
    pads = g.rng.integers(-1, 3, size=2 * (len(axes) or rank))
    pads = pads if mode == "constant" else np.abs(pads)
    if g.opset < 11:
        g.add("Pad", [x], pads=[int(p) for p in pads], mode=mode)
        return
    inputs = [x, g.const(pads, np.int64)]
    filled = mode == "constant" and g.rng.random() < 0.5
    if filled or some:
        inputs.append(g.const(g.random([], g.values[x].dtype)) if filled else "")
    if some:
        inputs.append(g.const(axes, np.int64))
    g.add("Pad", inputs, mode=mode)


def expand(g: Graph) -> None:
    if (x := g.pick(rank=1)) is not None:
        shape = [int(g.rng.choice(SIZES)) if d == 1 else (d if g.rng.random() < 0.7 else 1) for d in g.values[x].shape]
        g.add("Expand", [x, g.const(([2] if g.rng.random() < 0.3 else []) + shape, np.int64)])


def tile(g: Graph) -> None:
    if (x := g.pick(rank=1)) is not None:
        g.add("Tile", [x, g.const(g.rng.integers(0 if g.rng.random() < 0.05 else 1, 3, size=g.values[x].ndim),
                                  np.int64)])


def squeeze(g: Graph) -> None:
    if (x := g.pick()) is None:
        return
    rank = g.values[x].ndim
    ones = [k for k, d in enumerate(g.values[x].shape) if d == 1]
    if ones and g.rng.random() < 0.6:
        op, axes = "Squeeze", [int(g.rng.choice(ones))]
        axes = [a - rank if g.rng.random() < 0.3 else a for a in axes]
    else:
        op, count = "Unsqueeze", int(g.rng.choice([1, 1, 2]))
        axes = [int(a) for a in g.rng.choice(rank + count, size=count, replace=False)]
    if g.opset < 13:
        g.add(op, [x], axes=axes)
    else:
        g.add(op, [x, g.const(axes, np.int64)])


def corners(g: Graph) -> None:
    """Trilu, CenterCropPad and ReverseSequence."""
    if (x := g.pick("fib", 2)) is None:
        return
    value, kind = g.values[x], int(g.rng.integers(3))
    if kind == 0:
        more = [g.const(int(g.rng.integers(-3, 4)), np.int64)] if g.rng.random() < 0.7 else []
        g.add("Trilu", [x, *more], upper=int(g.rng.random() < 0.5))
    elif kind == 1:
        sizes = [max(0, d + int(g.rng.integers(-2, 3))) for d in value.shape[:2]]
        g.add("CenterCropPad", [x, g.const(sizes, np.int64)], axes=[0, 1])
    elif min(value.shape[:2]) > 0:
        time = int(g.rng.integers(2))
        lengths = g.rng.integers(1, value.shape[time] + 1, size=value.shape[1 - time])
        g.add("ReverseSequence", [x, g.const(lengths, np.int64)], time_axis=time, batch_axis=1 - time)


STEPS = (reshape, reshape, flatten, transpose, transpose, slices, slices, concat, concat, split, split, pad, expand,
         tile, squeeze, squeeze, corners)
