"""Comparisons, logic, bits, selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilegraph.ops.math import Math, V
from tilegraph.ops.pointwise.base import BOOL, EVERY, FLOATS, INTEGERS, NUMERIC, PointOp, alike, binary, unary
from tilegraph.ops.vecmath.basic import is_nan, like

Attrs = Mapping[str, Any]


def _equal(m: Math[V], a: V, b: V) -> V:
    if m.dtype(a) == "bool":
        return m.lnot(_xor(m, a, b))
    return m.eq(a, b)


def _xor(m: Math[V], a: V, b: V) -> V:
    b = m.share(b)
    return m.select(a, m.lnot(b), b)


def _where_rule(dtypes: Sequence[str | None]) -> str | None:
    if dtypes[0] != "bool":
        return f"the condition has dtype {dtypes[0]}, expected bool"
    return alike(EVERY)(dtypes[1:])


def _where(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """Selection. A float -0 of the second input comes out as +0, as in ONNX Runtime (which merges the two sides)."""
    condition, x, y = args
    return m.select(condition, m.add(x, like(m, x, 0.0)) if m.dtype(x) in FLOATS else x, y)


def _is_inf(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    x = m.share(args[0])
    inf = float("inf")
    positive, negative = bool(attrs.get("detect_positive", 1)), bool(attrs.get("detect_negative", 1))
    if positive and negative:
        return m.eq(m.abs(x), like(m, x, inf))
    if positive or negative:
        return m.eq(x, like(m, x, inf if positive else -inf))
    return m.const(False, "bool")


def _bit_not(m: Math[V], x: V) -> V:
    all_ones = 2 ** int(m.dtype(x)[4:]) - 1 if m.dtype(x).startswith("uint") else -1
    return m.bxor(x, like(m, x, all_ones))


def _bit_shift(m: Math[Any], args: list[Any], attrs: Attrs, out_dtype: str) -> Any:
    """A shift by the width or more, or by a negative amount, leaves only the sign, or 0 where there is none."""
    x, amount = m.share(args[0]), m.share(args[1])
    left, signed = _direction(attrs) == "LEFT", not m.dtype(x).startswith("u")
    width = int(m.dtype(x).lstrip("uint"))
    inside = m.lt(amount, like(m, amount, width))
    if signed:
        inside = m.land(inside, m.le(like(m, amount, 0), amount))
    safe = m.select(inside, amount, like(m, amount, 0))
    shifted = (m.shl if left else m.shr)(x, safe)
    nothing = like(m, x, 0)
    if signed and not left:
        nothing = m.select(m.lt(x, nothing), like(m, x, -1), nothing)
    return m.select(inside, shifted, nothing)


def _direction(attrs: Attrs) -> str:
    value = attrs.get("direction", "")
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_bit_shift(dtypes: Sequence[str | None], attrs: Attrs, opset: int) -> str | None:
    """a direction other than LEFT and RIGHT; signed integers before opset 28"""
    if _direction(attrs) not in ("LEFT", "RIGHT"):
        return f"direction is {_direction(attrs)!r}, expected LEFT or RIGHT"
    if opset < 28 and not str(dtypes[0]).startswith("u"):
        return f"no kernel for {dtypes[0]} before opset 28"
    return None


OPS = (
    binary("Equal", _equal, 1, EVERY, "7 (11: floats)"),
    binary("Less", lambda m, a, b: m.lt(a, b), 1, NUMERIC, "7 (9: integers)"),
    binary("LessOrEqual", lambda m, a, b: m.le(a, b), 1, NUMERIC, "12"),
    binary("Greater", lambda m, a, b: m.lt(b, a), 1, NUMERIC, "7 (9: integers)"),
    binary("GreaterOrEqual", lambda m, a, b: m.le(b, a), 1, NUMERIC, "12"),
    binary("And", lambda m, a, b: m.land(a, b), 1, BOOL, "7"),
    binary("Or", lambda m, a, b: m.lor(a, b), 1, BOOL, "7"),
    binary("Xor", _xor, 1, BOOL, "7"),
    unary("Not", lambda m, x: m.lnot(x), 1, BOOL, "1"),
    binary("BitwiseAnd", lambda m, a, b: m.band(a, b), 1, INTEGERS, "18"),
    binary("BitwiseOr", lambda m, a, b: m.bor(a, b), 1, INTEGERS, "18"),
    binary("BitwiseXor", lambda m, a, b: m.bxor(a, b), 1, INTEGERS, "18"),
    unary("BitwiseNot", _bit_not, 1, INTEGERS, "18"),
    PointOp("BitShift", "", (2, 2), _bit_shift, 4, "11 (28: signed)", alike(INTEGERS), _check_bit_shift),
    PointOp("Where", "", (3, 3), _where, 1, "9", _where_rule),
    unary("IsNaN", is_nan, 1, FLOATS, "9"),
    PointOp("IsInf", "", (1, 1), _is_inf, 2, "10", alike(FLOATS)),
    unary("Identity", lambda m, x: x, 0, EVERY, "1"),
)
