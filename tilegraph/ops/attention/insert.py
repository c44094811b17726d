"""Keys and values of which only a run says how many there are: one buffer for the past and what comes behind it.

    present = ScatterElements(Where(j < start, past, 0), start + row, new)      along the keys, one start a sequence
    out = softmax(Where(j < length, x, -inf)) Where(j < length, v, 0)

The first is a cache of which a run places a part; the second says that keys from `length` on do not matter, whatever
lies there, so a kernel need not read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilegraph.ops.attention.spelled import operator
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.prims import Decline, Prim
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place, index_of, insts


@dataclass(frozen=True, eq=False)
class Insert(Prim):
    """`data` with `updates` over some of its elements along `axis`; `indices` (int64) say where each goes."""

    data: Prim = None  # type: ignore[assignment]
    indices: Prim = None  # type: ignore[assignment]
    updates: Prim = None  # type: ignore[assignment]
    axis: int = 0

    @property
    def args(self) -> tuple[Prim, ...]:
        return (self.data, self.indices, self.updates)

    def text(self) -> str:
        return f"insert {self.axis}"


def scatter(c: NodeContext) -> list[Prim]:
    """The rule for ScatterElements."""
    data, indices, updates = c.arg(0), c.arg(1), c.arg(2)
    axis = int(c.attr("axis", 0)) % len(data.shape)
    if c.attr("reduction", "none") not in ("none", b"none"):
        raise c.decline("ScatterElements with a reduction")
    if indices.shape != updates.shape or indices.dtype != "int64":
        raise c.decline("ScatterElements with indices of other extents than the updates, or not of int64")
    if any(a != b for k, (a, b) in enumerate(zip(data.shape, updates.shape, strict=True)) if k != axis):
        raise c.decline("ScatterElements that leaves out elements of another axis")
    return [Insert(data.shape, data.dtype, data=data, indices=indices, updates=updates, axis=axis)]


def start_of(index: Inst, row: Var) -> Inst:
    """The index at which the first row goes, where they go side by side: `start + row`."""
    terms = index.args if operator(index) == "Add" else ()
    for step, start in (terms, terms[::-1]) if terms else ():
        if _counts(step, row) and not uses(start, (row,)):
            return start
    if row.extent == 1 and not uses(index, (row,)):
        return index
    raise Decline("what ScatterElements inserts does not go side by side")


def shortened(x: Inst, v: Inst, key: Var) -> tuple[Inst, Inst, Inst | None]:
    """(x, v, length): scores and values without what hides the keys from `length` on in both."""
    if operator(v) != "Where" or operator(x) != "Where":
        return x, v, None
    test, values, nothing = v.args
    other, scores, low = x.args
    if not _same(test, other) or operator(test) != "Less" or not _counts(test.args[0], key) \
            or uses(test.args[1], (key,)) or not (_is(nothing, 0.0) and _is(low, float("-inf"))):
        raise Decline("the values are chosen by something other than what hides the scores")
    return scores, values, test.args[1]


def uses(inst: Inst, loops: Iterable[Var]) -> bool:
    """Whether a value depends on one of the loops."""
    found = set(loops)
    return any(found & set(ix.vars()) for one in insts(inst) if (ix := index_of(one)) is not None)


def _counts(inst: Inst, var: Var) -> bool:
    """Whether a value is the index of the loop: a Range from 0 on."""
    if operator(inst) == "Mul" and _is(inst.args[1], 1):
        inst = inst.args[0]
    if operator(inst) == "Add" and _is(inst.args[1], 0):
        return _counts(inst.args[0], var)
    return isinstance(inst, Place) and inst.dtype == "int64" and inst.index == (Ix() if var.extent == 1 else Ix.of(var))


def _is(inst: Inst, value: float) -> bool:
    return isinstance(inst, Literal) and bool(inst.value == value)


def _same(a: Inst, b: Inst) -> bool:
    """Whether two values are computed alike."""
    if a is b:
        return True
    if type(a) is not type(b) or a.dtype != b.dtype or index_of(a) != index_of(b):
        return False
    if isinstance(a, Load) and isinstance(b, Load):
        return a.slot == b.slot
    if isinstance(a, Literal) and isinstance(b, Literal):
        return bool(a.value == b.value)
    if isinstance(a, Apply) and isinstance(b, Apply):
        return a.point.key == b.point.key and len(a.args) == len(b.args) and all(map(_same, a.args, b.args))
    return isinstance(a, Place) and not a.args
