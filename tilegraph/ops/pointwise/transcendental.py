"""Exponentials, logarithms, trigonometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilegraph.ops import vecmath
from tilegraph.ops.math import Math, V
from tilegraph.ops.pointwise.base import FLOATS, LIBM, PointOp, unary


def _libm(name: str) -> Callable[[Any, Any], Any]:
    def compute(m: Math[V], x: V) -> V:
        return m.libm(name, x)

    return compute


_BY_LIBM = {
    "Asin": ("asin", "7"),
    "Acos": ("acos", "7"),
    "Atan": ("atan", "7"),
    "Sinh": ("sinh", "9"),
    "Cosh": ("cosh", "9"),
    "Asinh": ("asinh", "9"),
    "Acosh": ("acosh", "9"),
    "Atanh": ("atanh", "9"),
}

OPS: tuple[PointOp, ...] = (
    unary("Exp", vecmath.exp, 19, FLOATS, "6"),
    unary("Log", vecmath.log, 31, FLOATS, "6"),
    unary("Tanh", vecmath.tanh, 31, FLOATS, "6"),
    unary("Erf", vecmath.erf, 33, FLOATS, "9"),
    unary("Sin", vecmath.sin, 120, FLOATS, "7"),
    unary("Cos", vecmath.cos, 120, FLOATS, "7"),
    unary("Tan", vecmath.tan, 130, FLOATS, "7"),
    *(unary(name, _libm(function), LIBM, FLOATS, since) for name, (function, since) in _BY_LIBM.items()),
)
