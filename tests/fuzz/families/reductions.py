"""Operators whose results have fewer numbers than their operands, normalisations, and running values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSumExp", "ReduceL1", "ReduceLogSum")


def axes_of(g: Graph, rank: int) -> list[int]:
    """Some axes, seldom all; the last one more often, and counted from either end."""
    count = int(g.rng.integers(1, rank + 1)) if g.rng.random() < 0.4 else 1
    axes = sorted(int(a) for a in g.rng.choice(rank, size=count, replace=False))
    if count == 1 and g.rng.random() < 0.6:
        axes = [rank - 1]
    return [a - rank if g.rng.random() < 0.5 else a for a in axes]


def reduced(g: Graph, op: str, x: str, axes: list[int], keep: int) -> str | None:
    """The reduction in the spelling of the graph's opset."""
    if g.opset >= (13 if op == "ReduceSum" else 18):
        return g.put(op, [x, g.const(axes, np.int64)], keepdims=keep)
    return g.put(op, [x], keepdims=keep, axes=axes)


def reduction(g: Graph) -> None:
    if (x := g.pick("fib", 1)) is None:
        return
    op, keep = str(g.rng.choice(REDUCTIONS)), int(g.rng.random() < 0.6)
    if g.rng.random() < 0.15:  # all axes, or with noop_with_empty_axes none
        if g.opset >= 18:
            more: dict[str, Any] = {"noop_with_empty_axes": 1} if g.rng.random() < 0.4 else {}
            empty = [g.const(np.zeros(0, np.int64))] if g.rng.random() < 0.5 else []
            g.add(op, [x, *empty], keepdims=keep, **more)
        else:
            g.add(op, [x], keepdims=keep)
        return
    reduced(g, op, x, axes_of(g, g.values[x].ndim), keep)


def computed_axes(g: Graph) -> None:
    """A reduction whose axes are no constant: of the rank, or an input of the model."""
    if (x := g.pick("f", 2)) is None or g.opset < 18:
        return
    if g.rng.random() < 0.5:
        dims = g.put("Shape", [x])
        rank = dims and g.put("Shape", [dims])
        axes = rank and g.put("Sub", [rank, g.const([int(g.rng.integers(1, 3))], np.int64)])
    else:
        axes = g.input(np.array([int(g.rng.integers(g.values[x].ndim))]))
    if axes:
        g.add(str(g.rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"])), [x, axes], keepdims=1)


def normalised(g: Graph) -> None:
    x = g.pick("f", 1)
    if x is None:
        return
    value, kind = g.values[x], int(g.rng.integers(6))
    if kind == 0:
        layer(g, x)
    elif kind == 4:
        reduced_away(g, x)
    elif kind == 5:
        g.add("Hardmax", [x], axis=axes_of(g, value.ndim)[0])
    else:
        g.add(("Softmax", "LogSoftmax", "LpNormalization")[kind - 1], [x], axis=int(axes_of(g, value.ndim)[0]))


def layer(g: Graph, x: str) -> None:
    if g.opset < 17:
        return  # ONNX Runtime knows it there, the standard does not
    value = g.values[x]
    axis = -1 if g.rng.random() < 0.7 else int(g.rng.integers(value.ndim))
    shape = value.shape[axis:]
    inputs = [x, g.const(g.random(shape, value.dtype))]
    if g.rng.random() < 0.7:
        inputs.append(g.const(g.random(shape, value.dtype)))
    outputs: Any = [True] if g.rng.random() < 0.85 else [True, bool(g.rng.random() < 0.5), True]
    g.add("LayerNormalization", inputs, outputs, axis=axis, epsilon=1e-5)


def reduced_away(g: Graph, x: str) -> None:
    """x less its mean, or over the root of its mean square: norms as exporters spell them."""
    dtype, last = g.values[x].dtype, [-1]
    if not g.finite(x, 100):
        return
    centred: str | None = x
    if g.rng.random() < 0.6:
        mean = reduced(g, "ReduceMean", x, last, 1)
        centred = mean and g.put("Sub", [x, mean])
    squares = centred and (g.put("Pow", [centred, g.const(2, dtype)]) if g.rng.random() < 0.5 else
                           g.put("Mul", [centred, centred]))
    variance = squares and reduced(g, "ReduceMean", squares, last, 1)
    variance = variance and g.put("Add", [variance, g.const(1e-3, dtype)])
    root = variance and g.put("Sqrt", [variance])
    if root and centred:
        made = g.put("Div", [centred, root])
        if made and g.rng.random() < 0.6:
            g.put("Mul", [made, g.const(g.random(g.values[x].shape[-1:], dtype))])


def running(g: Graph) -> None:
    if (x := g.pick("fi", 1)) is not None:
        axis = int(g.rng.integers(-g.values[x].ndim, g.values[x].ndim))
        op = "CumProd" if g.opset >= 26 and g.rng.random() < 0.3 else "CumSum"
        where = g.const(axis, np.int32 if g.rng.random() < 0.3 else np.int64)
        g.add(op, [x, where], exclusive=int(g.rng.random() < 0.3), reverse=int(g.rng.random() < 0.3))


def places(g: Graph) -> None:
    if (x := g.pick("fi", 1)) is not None:
        more: dict[str, Any] = {"select_last_index": 1} if g.opset >= 12 and g.rng.random() < 0.2 else {}
        g.add(str(g.rng.choice(["ArgMax", "ArgMin"])), [x], axis=int(axes_of(g, g.values[x].ndim)[0]),
              keepdims=int(g.rng.random() < 0.5), **more)


STEPS = (reduction, reduction, reduction, reduction, normalised, normalised, running, places, computed_axes)
