"""What is computed of constants alone, as exporters leave it, and met by a value at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from tests.fuzz.families.pointwise import UNARY

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def _step(g: Graph, c: str) -> str | None:
    """One more operator on what constants give."""
    array, kind = g.values[c], int(g.rng.integers(10))
    rank, dtype = array.ndim, array.dtype
    if kind < 3 or not rank:
        return g.put(str(g.rng.choice(UNARY)), [c])
    if kind == 3:
        return g.put("Transpose", [c], perm=[int(p) for p in g.rng.permutation(rank)])
    if kind == 4:
        return g.put("Reshape", [c, g.const([-1, *array.shape[1:]][:rank], np.int64)])
    if kind == 5:
        other = g.const(g.random(array.shape, dtype))
        return g.put("Concat", [c, other], axis=int(g.rng.integers(rank)))
    if kind == 6:
        return g.put("Cast", [c], to=int(g.rng.choice([1, 10])))
    if kind == 7 and rank == 2 and g.opset >= 14:
        return g.put("Trilu", [c], upper=int(g.rng.random() < 0.5))
    if kind == 8:
        return g.put("Expand", [c, g.const([int(g.rng.choice([1, 2])), *array.shape], np.int64)])
    scale = g.const(g.random([], dtype))
    return g.put(str(g.rng.choice(["Mul", "Add", "Sub", "Div" if dtype.kind == "f" else "Max"])),
                 [scale, c] if g.rng.random() < 0.5 else [c, scale])


def folded(g: Graph) -> None:
    """Some operators on a constant of the last axes of a value, and the value joined with it."""
    x = g.pick("fib", 1)
    if x is None or not g.values[x].size:
        return
    value = g.values[x]
    shape = [d if g.rng.random() < 0.8 else 1 for d in value.shape][int(g.rng.integers(value.ndim)):]
    made: str | None = g.const(g.random(shape, value.dtype if g.rng.random() < 0.8 else np.dtype(np.float32)))
    for _ in range(int(g.rng.integers(1, 5))):
        made = made and _step(g, made)
    if made is None:
        return
    if g.values[made].dtype != value.dtype:
        if value.dtype.kind != "f" or g.values[made].dtype.kind not in "fb":
            return
        made = g.put("Cast", [made], to=int(helper.np_dtype_to_tensor_dtype(value.dtype)))
    try:
        np.broadcast_shapes(value.shape, g.values[made].shape if made else ())
    except ValueError:
        return
    ops: Any = ("And", "Or", "Equal") if value.dtype.kind == "b" else ("Add", "Mul", "Sub", "Max", "Min", "Less")
    op = str(g.rng.choice(ops))
    if made:
        g.put(op, [made, x] if g.rng.random() < 0.6 else [x, made])


STEPS = (folded,)
