"""What is decided about positions when an attention is planned, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tilegraph.ops.attention.positions import simplified
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.lower.base import point
from tilegraph.ops.prims import Const, Point, Position
from tilegraph.ops.space import Apply, Inst, Literal, Place
from tilegraph.spec.dims import Dim

S, T = Dim.symbol("s"), Dim.symbol("t")
ROW, KEY, FEW = Ix.of(Var("i", S)), Ix.of(Var("j", S)), Ix.of(Var("n", Dim.of(100)))


def made(op: str, *values: Ix | int | bool, dtype: str = "int64", result: str = "", **attrs: Any) -> Inst:
    """`op` of positions and constants, simplified."""
    kinds = ["bool" if isinstance(v, bool) else dtype for v in values]
    prims = [Const((), k, v) if isinstance(v, int) else Position((S,), k) for v, k in zip(values, kinds, strict=True)]
    leaves = [Literal(k, v) if isinstance(v, int) else Place(k, v) for v, k in zip(values, kinds, strict=True)]
    return simplified(point(op, prims, result or dtype, attrs=attrs), tuple(leaves), lambda inst, *key: inst)


def value(inst: Inst) -> Any:
    """The number, or the index, or None for what is left to the kernel."""
    return inst.value if isinstance(inst, Literal) else inst.index if isinstance(inst, Place) else None


@pytest.mark.parametrize(("inst", "want"), [
    (made("Add", ROW, KEY), ROW + KEY), (made("Sub", ROW, 3), ROW - 3), (made("Mul", ROW, 2), ROW * 2),
    (made("Mul", ROW, KEY), None),
    (made("Sub", ROW, ROW), 0), (made("Neg", ROW), ROW * -1), (made("Add", FEW, 1, dtype="int32"), FEW + 1),
    (made("Add", ROW, 1, dtype="int32"), None), (made("Mul", FEW, 1 << 26, dtype="int32"), None),
    (made("Cast", FEW, result="int32", to=6), FEW), (made("Cast", ROW, result="int32", to=6), None),
])
def test_arithmetic(inst: Inst, want: Any) -> None:
    assert value(inst) == want


@pytest.mark.parametrize(("op", "a", "b", "want"), [
    ("Less", ROW, 0, False), ("LessOrEqual", 0, ROW, True), ("Less", ROW, Ix.of(S), True),
    ("Less", ROW, Ix.of(S) - 1, None), ("LessOrEqual", ROW, Ix.of(S) - 1, True), ("Less", ROW, Ix.of(T), None),
    ("Less", KEY, ROW, None), ("Greater", -1, ROW, False),
    ("GreaterOrEqual", ROW, 0, True), ("Greater", ROW, 0, None), ("Equal", ROW, KEY, None), ("Equal", ROW, -1, False),
    ("Equal", ROW, ROW, True), ("LessOrEqual", ROW, ROW, True), ("Less", ROW, ROW, False), ("Less", FEW, 100, True),
    ("Less", FEW, 99, None), ("Equal", True, False, False), ("Equal", False, False, True),
])
def test_comparisons(op: str, a: Ix | int, b: Ix | int, want: bool | None) -> None:
    assert value(made(op, a, b, result="bool")) == want


def test_logic() -> None:
    condition = made("Less", KEY, ROW, result="bool")
    place = Place("int64", ROW)
    always, never = Literal("bool", True), Literal("bool", False)

    def logic(op: str, *operands: Inst) -> Inst:
        prims = [Position((S,), o.dtype) for o in operands]
        return simplified(point(op, prims, operands[-1].dtype), operands, lambda inst, *key: inst)

    other = Place("int64", KEY)
    assert logic("Where", always, place, other) is place
    assert logic("Where", never, other, place) is place
    assert isinstance(logic("Where", condition, place, place), Apply)
    assert logic("And", condition, always) is condition
    assert value(logic("And", never, condition)) is False
    assert logic("Or", never, condition) is condition
    assert value(logic("Or", condition, always)) is True
    assert isinstance(logic("And", condition, condition), Apply)
    assert value(logic("Not", never)) is True
    assert isinstance(logic("Xor", condition, always), Apply)


@pytest.mark.parametrize(("op", "a", "by", "fast"), [
    ("Div", ROW, 3, True), ("Mod", ROW - KEY, 7, True), ("Mod", ROW * 8, 7, True), ("Mod", ROW * 16, 7, False),
    ("Div", ROW * S, 3, False), ("Mod", ROW, -7, False),
])
def test_divisions(op: str, a: Ix, by: int, fast: bool) -> None:
    plain = point(op, [Position((S,), "int64"), Const((), "int64", by)], "int64")
    inst = made(op, a, by)
    assert isinstance(inst, Apply)
    assert (inst.point.cost != plain.cost) is fast
    assert inst.point.key == plain.key


def test_remainders_with_the_sign_of_the_dividend_stay() -> None:
    inst = made("Mod", ROW - KEY, 7, fmod=1)
    assert isinstance(inst, Apply)
    assert isinstance(inst.point, Point)
    assert inst.point.cost == point("Mod", [Position((S,), "int64"), Const((), "int64", 7)], "int64",
                                    attrs={"fmod": 1}).cost
