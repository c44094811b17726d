"""Products with constant matrices and of computed ones, Einsum, and several products of one operand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

WIDTHS = (1, 3, 8, 16, 33, 48, 67)
SOFTENING = ("Tanh", "Sigmoid", "Relu", "Erf", "Abs")


def matrix(g: Graph, rows: int, columns: int, dtype: np.dtype[Any]) -> str:
    """A constant [rows, columns] by which products keep their operand's size."""
    return g.const(g.rng.standard_normal((rows, columns)) / np.sqrt(max(rows, 1)), dtype)


def matmul(g: Graph) -> None:
    x = g.pick("f", 2 if g.rng.random() < 0.9 else 1)
    if x is None:
        return
    value = g.values[x]
    last = value.shape[-1]
    if g.rng.random() < 0.7:
        width = int(g.rng.choice(WIDTHS))
        made = g.put("MatMul", [x, matrix(g, last, width, value.dtype)])
        if made and g.rng.random() < 0.6:
            g.put("Add", [made, g.const(g.random([width], value.dtype))])
        return
    fitting = [n for n, v in g.values.items() if v.dtype == value.dtype and v.ndim >= 2 and v.shape[-2] == last]
    if fitting:
        g.add("MatMul", [x, str(g.rng.choice(fitting))])


def turned(g: Graph) -> None:
    """A constant matrix on the left, a vector on the right, or a stack of matrices."""
    x = g.pick("f", 2)
    if x is None:
        return
    value, kind = g.values[x], int(g.rng.integers(3))
    rows, columns = value.shape[-2:]
    if kind == 0:
        g.add("MatMul", [matrix(g, int(g.rng.choice(WIDTHS)), rows, value.dtype), x])
    elif kind == 1:
        g.add("MatMul", [x, g.const(g.rng.standard_normal(columns) / np.sqrt(max(columns, 1)), value.dtype)])
    elif value.ndim > 2:
        shape = (*value.shape[-3:-2], columns, int(g.rng.choice(WIDTHS)))
        g.add("MatMul", [x, g.const(g.rng.standard_normal(shape) / np.sqrt(max(columns, 1)), value.dtype)])


def beside(g: Graph) -> None:
    """Two or three products of one operand, with sizes of their own, and what joins two of the same size."""
    x = g.pick("f", 2)
    if x is None:
        return
    value, width = g.values[x], int(g.rng.choice(WIDTHS))
    made = [g.put("MatMul", [x, matrix(g, value.shape[-1], width, value.dtype)]) for _ in range(2)]
    gate = made[0] and g.put(str(g.rng.choice(SOFTENING)), [made[0]])
    joined = gate and made[1] and g.put("Mul", [gate, made[1]])
    if joined and g.rng.random() < 0.6:
        back = g.put("MatMul", [joined, matrix(g, width, value.shape[-1], value.dtype)])
        if back:
            g.put("Add", [x, back])


def several(g: Graph) -> None:
    """Two to five products of one operand, each with a width, a chain and an order of its own; a chain may read the
    result of another, and so may a product."""
    x = g.pick("f", 2)
    if x is None or g.values[x].ndim > 4:
        return
    value = g.values[x]
    made: list[str] = []
    for _ in range(int(g.rng.integers(2, 6))):
        width = int(g.rng.choice(WIDTHS))
        if value.ndim == 2 and g.rng.random() < 0.4:
            turned = int(g.rng.random() < 0.5)
            shape = (width, value.shape[-1]) if turned else (value.shape[-1], width)
            weight = g.rng.standard_normal(shape) / np.sqrt(max(value.shape[-1], 1))
            one = g.put("Gemm", [x, g.const(weight, value.dtype), g.const(g.rng.standard_normal(width), value.dtype)],
                        transB=turned)
        else:
            one = g.put("MatMul", [x, matrix(g, value.shape[-1], width, value.dtype)])
        if one is None:
            return
        if g.rng.random() < 0.5:
            one = g.put("Add", [one, g.const(g.random([width], value.dtype))]) or one
        if g.rng.random() < 0.4:
            one = g.put(str(g.rng.choice(SOFTENING)), [one]) or one
        fitting = [n for n in made if g.values[n].shape == g.values[one].shape]
        if fitting and g.rng.random() < 0.4:
            one = g.put("Mul", [one, str(g.rng.choice(fitting))]) or one
        if g.rng.random() < 0.4:
            order = [int(a) for a in g.rng.permutation(value.ndim)]
            one = g.put("Transpose", [one], perm=order) or one
        made.append(one)
        same = [n for n in made if g.values[n].shape == value.shape]
        if same and g.rng.random() < 0.15:
            x = str(g.rng.choice(same))


def gemm(g: Graph) -> None:
    x = g.pick("f", 2)
    if x is None:
        return
    value = g.values[x]
    if value.ndim > 2:
        flat = g.put("Flatten", [x], axis=int(g.rng.integers(1, value.ndim)))
        if flat is None:
            return
        x, value = flat, g.values[flat]
    turned_a, turned_b = int(g.rng.random() < 0.2), int(g.rng.random() < 0.5)
    depth, width = value.shape[0 if turned_a else 1], int(g.rng.choice(WIDTHS))
    weight = g.rng.standard_normal((width, depth) if turned_b else (depth, width)) / np.sqrt(max(depth, 1))
    inputs = [x, g.const(weight, value.dtype)]
    if g.opset < 11 or g.rng.random() < 0.7:
        shape = [[width], [1, width], [1], []][int(g.rng.integers(4))]
        inputs.append(g.const(g.rng.standard_normal(shape), value.dtype))
    more: dict[str, Any] = {"alpha": 0.5} if g.rng.random() < 0.2 else {}
    more |= {"beta": 1.5} if g.rng.random() < 0.2 else {}
    made = g.put("Gemm", inputs, transA=turned_a, transB=turned_b, **more)
    if made is not None and g.rng.random() < 0.6:
        g.put(str(g.rng.choice(SOFTENING)), [made])


def einsum(g: Graph) -> None:
    x = g.pick("f", 2)
    if x is None or g.values[x].ndim not in (3, 4):
        return
    shape, dtype = g.values[x].shape, g.values[x].dtype
    if len(shape) == 4:
        a, b, c, d = shape
        choices = [("bhid,bhjd->bhij", (a, b, 5, d)), ("bihd,bjhd->bhij", (a, 3, c, d)), ("abcd,de->abce", (d, 6)),
                   ("nchw,kc->nkhw", (6, b)), ("abcd->adcb", None), ("...cd,d->...c", (d,))]
    else:
        a, b, c = shape
        choices = [("abc,cd->abd", (c, 4)), ("abc,bd->acd", (b, 3)), ("abc,adc->abd", (a, 5, c)),
                   ("abc,abd->acd", (a, b, 2)), ("abc->ac", None), ("abc,abc->ab", (a, b, c)),
                   ("i j k, k -> i j", (c,))]
    equation, other = choices[int(g.rng.integers(len(choices)))]
    operands = [x] if other is None else [x, g.const(g.rng.standard_normal(other), dtype)]
    g.put("Einsum", operands, equation=equation)


def equation(g: Graph) -> None:
    """Einsum of a value with a constant or another value, by a random equation: axes of both kept, summed, in any
    order, with axes of their own."""
    x = g.pick("fi", 1)
    if x is None or g.opset < 12 or not g.values[x].size or g.values[x].ndim > 4:
        return
    value = g.values[x]
    mine = [str(s) for s in g.rng.permutation(list("abcdefgh"))[:value.ndim]]
    sizes = dict(zip(mine, value.shape, strict=True))
    shared = [s for s in mine if g.rng.random() < 0.7]
    own = {str(s): int(g.rng.integers(1, 7)) for s in "xyz"[:int(g.rng.integers(0, 3))]}
    theirs = [str(s) for s in g.rng.permutation([*shared, *own])] if shared or own else []
    sizes |= own
    kept = [s for s in dict.fromkeys([*mine, *theirs]) if g.rng.random() < (0.4 if s in shared else 0.85)]
    result = [str(s) for s in g.rng.permutation(kept)] if kept and g.rng.random() < 0.6 else kept
    shape = [sizes[s] for s in theirs]
    if not theirs or np.prod([float(sizes[s]) for s in sizes]) > 3e5:
        return
    scale = np.sqrt(np.prod([float(sizes[s]) for s in sizes if s not in result]))
    numbers = g.rng.standard_normal(shape) * (1 / scale if value.dtype.kind == "f" else 8)
    other = g.const(numbers.astype(value.dtype))
    terms = [(mine, x), (theirs, other)]
    if g.rng.random() < 0.4:
        terms.reverse()
    space = " " if g.rng.random() < 0.2 else ""
    left = f"{space},{space}".join("".join(t) for t, _ in terms)
    arrow = f"{space}->{space}" + "".join(result)
    g.put("Einsum", [name for _, name in terms], equation=left + arrow)


def deep(g: Graph) -> None:
    """Few rows times a matrix of many, so that sums are long, and from the narrow result back to many columns."""
    x = g.pick("f", 2)
    if x is None or not g.values[x].size or g.values[x].size > 2000:
        return
    value, width = g.values[x], int(g.rng.choice([200, 400, 777, 1600]))
    if value.size // value.shape[-1] * width > 36000:
        return
    made = g.put("MatMul", [x, matrix(g, value.shape[-1], width, value.dtype)])
    made = made and g.put(str(g.rng.choice(SOFTENING)), [made])
    back = made and g.put("MatMul", [made, matrix(g, width, int(g.rng.choice(WIDTHS)), value.dtype)])
    if back and g.rng.random() < 0.6:
        g.put("Add", [back, g.const(g.random(g.values[back].shape[-1:], value.dtype))])


STEPS = (matmul, matmul, matmul, turned, beside, several, gemm, gemm, einsum, equation, equation, deep)
