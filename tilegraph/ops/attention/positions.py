"""Arithmetic on positions that is decided when a kernel is planned.

Masks that exporters write are full of it: indices that are made non-negative although they are, floor division spelled
for any sign, Gather at the place where an element lies anyway. Sums and differences of positions are positions again,
comparisons whose outcome the extents tell are constants, and quotients of positions are those of float64. Extents count
as any non-negative number; but loops are over elements that lie in memory, so they end below 2^48.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, shape_of
from tilegraph.ops.lower.views import concat, reshape
from tilegraph.ops.prims import Extent, Point, Prim
from tilegraph.ops.space import Apply, Inst, Literal, Place
from tilegraph.spec.dims import Dim

Leaf = Callable[[Inst, object], Inst]  # the leaf that there is already, or this one, by what it is

_INTEGERS = ("int32", "int64")
_DIVISION = 16  # vector instructions, by the time that they take
_COMPARISONS = {"Less": (0, 1), "LessOrEqual": (0, 0), "Greater": (1, 1), "GreaterOrEqual": (1, 0)}  # swapped, strict


def simplified(prim: Point, operands: tuple[Inst, ...], leaf: Leaf) -> Inst:
    """`prim` of `operands`: a position, a constant or one of them where that is the same for every element."""
    name = prim.key.partition("<")[0]
    found: Inst | None = None
    if name in ("Where", "And", "Or", "Not", "Xor"):
        found = _logic(name, operands)
    elif prim.dtype == "bool" and len(operands) == 2:
        found = _compared(name, operands)
    elif prim.dtype in _INTEGERS:
        ix = _placed(name, operands, prim.dtype)
        if ix is not None:
            size = ix.const.as_int()
            found = Literal(prim.dtype, size) if not ix.terms and size is not None else Place(prim.dtype, ix)
    if found is None:
        return Apply(prim.dtype, _divided(prim, name, operands) or prim, operands)
    if isinstance(found, Literal):
        return leaf(found, repr(found.value))
    return leaf(found, found.index) if isinstance(found, Place) and found not in operands else found


def lower_shape(c: NodeContext) -> list[Prim]:
    """Extents as numbers: positions of elements in flattened masks are made of them. What has them is not read."""
    value = c.node.inputs[0]
    if value is None:
        raise c.decline("Shape of nothing")
    dims = shape_of(value, c.rename)[slice(c.attr("start", 0), c.attr("end"))]
    if not dims:
        raise c.decline("Shape of no extent")
    return [concat([reshape(Extent((), "int64", dim=dim), (Dim.of(1),)) for dim in dims], 0)]


def affine(inst: Inst) -> Ix | None:
    """The index that an integer `inst` is."""
    if inst.dtype not in _INTEGERS:
        return None
    if isinstance(inst, Literal):
        return Ix.of(int(inst.value))
    return inst.index if isinstance(inst, Place) and not inst.index.dynamic else None


def _logic(name: str, operands: tuple[Inst, ...]) -> Inst | None:
    known = [bool(a.value) if isinstance(a, Literal) and a.dtype == "bool" else None for a in operands]
    if name == "Where":
        return None if known[0] is None else operands[1] if known[0] else operands[2]
    if name == "Not":
        return None if known[0] is None else Literal("bool", not known[0])
    for one, other in ((0, 1), (1, 0)):
        if known[one] is None or operands[0].dtype != "bool":
            continue
        if name == "Xor":
            return operands[other] if not known[one] else None
        decides = name == "Or"  # what one operand alone makes the result
        return Literal("bool", decides) if known[one] == decides else operands[other]
    return None


def _compared(name: str, operands: tuple[Inst, ...]) -> Inst | None:
    a, b = operands
    if name == "Equal" and isinstance(a, Literal) and isinstance(b, Literal) and a.dtype == b.dtype == "bool":
        return Literal("bool", bool(a.value) == bool(b.value))
    left, right = affine(a), affine(b)
    if left is None or right is None or (name != "Equal" and name not in _COMPARISONS):
        return None
    if name == "Equal":
        apart = _least(left - right, 1) or _least(right - left, 1)
        return Literal("bool", False) if apart else Literal("bool", True) if left == right else None
    swapped, strict = _COMPARISONS[name]
    if swapped:
        left, right = right, left
    if _least(right - left, strict):
        return Literal("bool", True)
    return Literal("bool", False) if _least(left - right, 1 - strict) else None


def _least(ix: Ix, bound: int) -> bool:
    """Whether `ix` is at least `bound` wherever the loops are."""
    found = ix.bounds()
    return found is not None and all(c >= 0 for _, c in (found[0] - bound).terms)


def _placed(name: str, operands: tuple[Inst, ...], dtype: str) -> Ix | None:
    """The index that integer arithmetic on positions gives; int32 only where nothing can overflow."""
    values = [affine(a) for a in operands]
    known = [v for v in values if v is not None]
    if len(known) != len(values):
        return None
    match name:
        case "Add":
            made = known[0] + known[1]
        case "Sub":
            made = known[0] - known[1]
        case "Neg":
            made = known[0] * -1
        case "Mul" if any(not v.terms for v in known):
            number, other = (known[0], known[1]) if not known[0].terms else (known[1], known[0])
            made = other * number.const
        case "Cast" if operands[0].dtype in _INTEGERS:
            made = known[0]
        case "place":  # an index into as many elements as the second operand says
            return known[0] if not known[1].terms and known[0].below(known[1].const) else None
        case _:
            return None
    return made if dtype == "int64" or _fits(made, dtype) else None


def _divided(prim: Point, name: str, operands: tuple[Inst, ...]) -> Point | None:
    """Div and Mod of a position by a constant, in float64, which has vectors where int64 has none.

    Where |x| and c are integers below 2^52, x / c differs from the next integer by 1 / c at least, which is more than
    half the last bit of the quotient: it is never rounded up to it, and floor and truncation are exact.
    """
    if name not in ("Div", "Mod") or prim.dtype not in _INTEGERS or not isinstance(operands[1], Literal):
        return None
    by, size = int(operands[1].value), _size(operands[0])
    if not 1 <= by < 1 << 31 or size is None or size >= 1 << 52 or "fmod=1" in prim.key:
        return None

    def fn(m: Any, values: Sequence[Any]) -> Any:
        x, c = m.share(m.cast(values[0], "float64")), m.const(float(by), "float64")
        quotient = m.div(x, c)
        if name == "Div":
            return m.cast(m.trunc(quotient), prim.dtype)
        return m.cast(m.sub(x, m.mul(m.floor(quotient), c)), prim.dtype)

    return replace(prim, fn=fn, cost=_DIVISION)


def _size(inst: Inst) -> int | None:
    """A bound on |x| in all loops that there can be."""
    if inst.dtype == "int32":
        return 1 << 31
    ix = affine(inst)
    if ix is not None:
        parts = [*ix.const.terms, *((mono, c << 48) for _, coef in ix.terms for mono, c in coef.terms)]
        # An extent is below 2^48, and so is a position; their products may be anything.
        linear = all(len(mono) <= 1 for mono, _ in ix.const.terms) and all(
            not mono for _, coef in ix.terms for mono, _ in coef.terms)
        return sum(abs(c) << (48 if mono else 0) for mono, c in parts) if linear else None
    if not isinstance(inst, Apply):
        return None
    sizes = [_size(a) for a in inst.operands]
    known = [s for s in sizes if s is not None]
    match inst.point.key.partition("<")[0]:
        case "Abs" | "Neg" | "Add" | "Sub" | "Min" | "Max" if len(known) == len(sizes):
            return sum(known)
        case "Cast" if inst.operands[0].dtype in _INTEGERS:
            return sizes[0]
        case "Div" | "Mod" if isinstance(inst.operands[1], Literal):
            return sizes[0] if "Div" in inst.point.key else abs(int(inst.operands[1].value))
    return None


def _fits(ix: Ix, dtype: str) -> bool:
    found = ix.bounds()
    limits = np.iinfo(dtype)
    low, high = (None, None) if found is None else (d.as_int() for d in found)
    return low is not None and high is not None and limits.min <= low and high <= limits.max
