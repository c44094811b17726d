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
    unary("Exp", vecmath.exp, 18, FLOATS, "6"),
    unary("Log", vecmath.log, 30, FLOATS, "6"),
    unary("Tanh", vecmath.tanh, 29, FLOATS, "6"),
    unary("Erf", vecmath.erf, 27, FLOATS, "9"),
    unary("Sin", vecmath.sin, 110, FLOATS, "7"),
    unary("Cos", vecmath.cos, 110, FLOATS, "7"),
    unary("Tan", vecmath.tan, 120, FLOATS, "7"),
    *(unary(name, _libm(function), LIBM, FLOATS, since) for name, (function, since) in _BY_LIBM.items()),
)
