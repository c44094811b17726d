"""Exponentials, logarithms, trigonometry."""

from __future__ import annotations

from tilegraph.ops import vecmath
from tilegraph.ops.pointwise.base import FLOATS, PointOp, unary

OPS: tuple[PointOp, ...] = (
    unary("Exp", vecmath.exp, 19, FLOATS, "6"),
    unary("Log", vecmath.log, 31, FLOATS, "6"),
    unary("Tanh", vecmath.tanh, 31, FLOATS, "6"),
    unary("Erf", vecmath.erf, 33, FLOATS, "9"),
    unary("Sin", vecmath.sin, 120, FLOATS, "7"),
    unary("Cos", vecmath.cos, 120, FLOATS, "7"),
    unary("Tan", vecmath.tan, 130, FLOATS, "7"),
    unary("Asin", vecmath.asin, 27, FLOATS, "7"),
    unary("Acos", vecmath.acos, 30, FLOATS, "7"),
    unary("Atan", vecmath.atan, 32, FLOATS, "7"),
    unary("Sinh", vecmath.sinh, 80, FLOATS, "9"),
    unary("Cosh", vecmath.cosh, 65, FLOATS, "9"),
    unary("Asinh", vecmath.asinh, 65, FLOATS, "9"),
    unary("Acosh", vecmath.acosh, 55, FLOATS, "9"),
    unary("Atanh", vecmath.atanh, 55, FLOATS, "9"),
)
