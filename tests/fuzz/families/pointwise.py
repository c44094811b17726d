"""Operators from element to element: one operand, two, constants beside them, choices, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from tests.fuzz.values import FLOATS, INTEGERS

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Softplus", "Softsign", "Reciprocal",
         "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "HardSwish", "Mish", "IsNaN",
         "Not", "Identity", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "BitwiseNot", "Dropout", "Swish")
WITH_ATTRIBUTE = {
    "LeakyRelu": ("alpha", 0.3),
    "Elu": ("alpha", 0.7),
    "HardSigmoid": ("alpha", 0.25),
    "Celu": ("alpha", 1.5),
    "Selu": ("gamma", 1.1),
    "ThresholdedRelu": ("alpha", 0.4),
    "Gelu": ("approximate", "tanh"),
    "IsInf": ("detect_negative", 0),
    "Shrink": ("lambd", 0.6),
}
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Greater", "Less", "Equal", "GreaterOrEqual",
          "LessOrEqual", "And", "Or", "Xor", "Mod", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
SEVERAL = ("Sum", "Mean", "Max", "Min")
EXPONENTS = (2.0, 3.0, 0.5, -0.5, -1.0, 1.5, 0.0, 2.5)


def unary(g: Graph) -> None:
    if (x := g.pick()) is not None:
        g.add(str(g.rng.choice(UNARY)), [x])


def attribute(g: Graph) -> None:
    op = str(g.rng.choice(list(WITH_ATTRIBUTE)))
    name, value = WITH_ATTRIBUTE[op]
    more: dict[str, Any] = {name: value} if g.rng.random() < 0.7 else {}
    if op == "HardSigmoid" and g.rng.random() < 0.5:
        more["beta"] = 0.6
    if op == "Selu" and g.rng.random() < 0.5:
        more["alpha"] = 0.9
    if (x := g.pick("f")) is not None:
        g.add(op, [x], **more)


def binary(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    op, y = str(g.rng.choice(BINARY)), g.alike(x)
    if op in ("Div", "Mod") and g.values[x].dtype.kind in "iu":
        return  # the divisor could be zero for other inputs
    more: dict[str, Any] = {"fmod": 1} if op == "Mod" else {}
    g.add(op, [x, y] if g.rng.random() < 0.5 else [y, x], **more)


def several(g: Graph) -> None:
    """Operators of one operand, or three, which may be one value again and again."""
    if (x := g.pick("fi")) is not None:
        g.add(str(g.rng.choice(SEVERAL)), [x, *(g.alike(x) for _ in range(int(g.rng.choice([0, 2]))))])


def constant(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    value = g.values[x]
    shape = [d if g.rng.random() < 0.5 else 1 for d in value.shape]
    array = g.random(shape[int(g.rng.integers(len(shape) + 1)):], value.dtype)
    if g.rng.random() < 0.2:  # some of it neutral, and not all
        array = g.rng.integers(0 if value.dtype.kind in "ub" else -1, 3, size=array.shape).astype(value.dtype)
    op = str(g.rng.choice(BINARY))
    divided = op in ("Div", "Mod") and value.dtype.kind in "iu"
    if divided:  # neither 0 nor -1: ONNX Runtime's process dies of INT_MIN / -1
        array = np.where((array == 0) | (value.dtype.kind == "i") & (array == np.array(-1).astype(value.dtype)), 1,
                         array).astype(value.dtype)
    c = g.const(array)
    pair = [x, c] if divided or g.rng.random() < 0.7 else [c, x]
    more: dict[str, Any] = {"fmod": 1} if op == "Mod" and value.dtype.kind == "f" else {}
    if not g.add(op, pair, **more):
        g.drop(c)


def power(g: Graph) -> None:
    """Pow by a constant, whose dtype may be another one."""
    if (x := g.pick("f")) is not None:
        dtype = g.values[x].dtype if g.rng.random() < 0.7 else np.dtype(g.rng.choice(["int64", "int32", "float32"]))
        exponent = float(g.rng.choice(EXPONENTS))
        g.add("Pow", [x, g.const(exponent if dtype.kind == "f" else round(exponent), dtype)])


def shifts(g: Graph) -> None:
    if (x := g.pick("u")) is not None:
        amount = g.const(g.rng.integers(0, 8), g.values[x].dtype)
        g.add("BitShift", [x, amount], direction=str(g.rng.choice(["LEFT", "RIGHT"])))


def where(g: Graph) -> None:
    mask, x = g.pick("b"), g.pick()
    if mask is None or x is None:
        return
    if g.rng.random() < 0.3:
        other = g.const(g.random([], g.values[x].dtype))
        g.add("Where", [mask, x, other] if g.rng.random() < 0.5 else [mask, other, x])
        return
    others = [n for n, v in g.values.items() if v.dtype == g.values[x].dtype]
    g.add("Where", [mask, x, str(g.rng.choice(others))])


def cast(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    value = g.values[x]
    target = np.dtype(g.rng.choice((*FLOATS, *INTEGERS, "bool")))
    if value.dtype.kind == "f" and target.kind in "iu":
        if not np.isfinite(value).all() or np.abs(value.astype(np.float64)).max(initial=0) > 100:
            return  # undefined
        if target.kind == "u" and value.min(initial=0) < 0:
            return
        g.settled = True
    if g.opset >= 15 and g.rng.random() < 0.2:
        like = [n for n, v in g.values.items() if v.dtype == target]
        if like:
            g.add("CastLike", [x, str(g.rng.choice(like))])
        return
    g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(target))


def half(g: Graph) -> None:
    """Down to float16 or bfloat16 and back again, as exporters of mixed precision leave it."""
    x = g.pick("f")
    if x is None or not g.finite(x, 6e4):
        return
    kind = helper.np_dtype_to_tensor_dtype(g.values[x].dtype)
    down = int(g.rng.choice([10, 16]))
    if down == 10:
        small = g.put("Cast", [x], to=10)
        if small:
            g.put("Cast", [small], to=kind)
        return
    # numpy has no bfloat16, so the two casts are tried as one.
    a, b, (result,) = g.fresh(), g.fresh(), g.results(1)
    nodes = [helper.make_node("Cast", [x], [a], to=down)]
    if g.values[x].ndim > 1 and g.rng.random() < 0.5:
        nodes.append(helper.make_node("Transpose", [a], [b], perm=list(reversed(range(g.values[x].ndim)))))
        a = b
    nodes.append(helper.make_node("Cast", [a], [result], to=kind))
    if x not in g.rounded:
        g.together(nodes, [result])


def clip(g: Graph) -> None:
    x = g.pick("fi")
    if x is None:
        return
    dtype = g.values[x].dtype
    low, high = (-0.5, 1.5) if dtype.kind == "f" else (-3, 4)
    if g.opset < 11:
        g.add("Clip", [x], min=float(low), max=float(high))
        return
    bounds: list[Any] = [g.const(low, dtype) if g.rng.random() < 0.8 else "",
                         g.const(high, dtype) if g.rng.random() < 0.8 else ""]
    g.add("Clip", [x, *bounds] if bounds[1] else [x, *bounds[:1 if bounds[0] else 0]])


def squashed(g: Graph) -> None:
    """Activations as exporters spell them, with every inner value read once."""
    x = g.pick("f")
    if x is None:
        return
    dtype, kind = g.values[x].dtype, int(g.rng.integers(5))
    if kind == 0:
        s = g.put("Sigmoid", [x])
        made = s and g.put("Mul", [x, s])
    elif kind == 1:
        s = g.put("Div", [x, g.const(2**0.5, dtype)])
        s = s and g.put("Erf", [s])
        s = s and g.put("Add", [s, g.const(1, dtype)])
        s = s and g.put("Mul", [x, s])
        made = s and g.put("Mul", [s, g.const(0.5, dtype)])
    elif kind == 2:
        s = g.put("Add", [x, g.const(3, dtype)])
        s = s and (g.put("Clip", [s, g.const(0, dtype), g.const(6, dtype)]) if g.opset >= 11 else
                   g.put("Clip", [s], min=0.0, max=6.0))
        s = s and g.put("Mul", [x, s])
        made = s and g.put("Div", [s, g.const(6, dtype)])
    elif kind == 3:
        s = g.put("Softplus", [x])
        s = s and g.put("Tanh", [s])
        made = s and g.put("Mul", [x, s])
    else:
        s = g.put("Pow", [x, g.const(3, dtype)])
        s = s and g.put("Mul", [s, g.const(0.044715, dtype)])
        s = s and g.put("Add", [x, s])
        s = s and g.put("Tanh", [s])
        made = s and g.put("Mul", [x, s])
    if made and g.rng.random() < 0.3:
        g.put("Add", [made, x])


STEPS = (unary, unary, unary, attribute, attribute, binary, binary, binary, binary, constant, constant, constant, where,
         cast, clip, several, power, shifts, half, squashed)
