"""What is certain about the score modifier on a whole block of the score matrix, found by interval arithmetic.

Every value of the modifier gets an interval that holds its elements on the block: positions from the block's corners,
operands in memory from a scan of what the block reads of them (and a few columns before), scores from a bound on the
products. Rounding is monotone, so an interval computed with the modifier's own operations holds its rounded results.
The interval of the result tells which blocks cannot matter; those of the conditions tell where no predicate has to be
evaluated.

NaN is never inside an interval unless a bound is NaN too, and a comparison with a NaN bound is false: nothing is
concluded from it. Sums of opposite infinities make NaN bounds the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import STORAGE, Emitter
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace, Score
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.space import Apply, Inst, Literal, Load, Place, insts
from tilegraph.spec.dims import Dim

LOW = -1000.0  # a bound below which a block is left out at first

_COMPARISONS = {"Less": ("<", False), "LessOrEqual": ("<=", False), "Greater": ("<", True),
                "GreaterOrEqual": ("<=", True)}


@dataclass(frozen=True)
class Interval:
    """Scalars with low <= x <= high for every element x; for bool: true for all elements, true for some."""

    low: V
    high: V


@dataclass(frozen=True)
class Block:
    """Rows first .. last of queries and of keys (int64, both ends included), and how many of each."""

    i: tuple[t.Expr, t.Expr]
    j: tuple[t.Expr, t.Expr]
    rows: t.Expr
    columns: t.Expr


def operator(inst: Inst) -> str:
    return inst.point.key.partition("<")[0] if isinstance(inst, Apply) else ""


def moves(inst: Inst, space: AttentionSpace) -> bool:
    """Whether `inst` changes from key to key within a row, apart from the scores."""
    for one in insts(inst):
        if isinstance(one, Load) and space.j in one.address.vars():
            return True
        if isinstance(one, Place) and space.j in one.index.vars():
            return True
    return False


def conditions(space: AttentionSpace) -> list[tuple[Inst, bool]]:
    """The conditions of Where that depend on the key, which a block may decide as a whole; and with which value each
    leaves the scores as they are: false where it chooses a number that hides."""
    found: dict[Inst, bool] = {}
    for inst in insts(space.x):
        if operator(inst) == "Where" and moves(inst.args[0], space) \
                and not any(isinstance(one, Score) for one in insts(inst.args[0])):
            chosen, other = inst.args[1:]
            found.setdefault(inst.args[0], not _hides(chosen) or _hides(other))
    return list(found.items())


def _hides(inst: Inst) -> bool:
    return isinstance(inst, Literal) and inst.value <= LOW


def can_skip(space: AttentionSpace) -> bool:
    """Whether the modifier may hide keys: something other than the score changes along them."""
    return moves(space.x, space)


class Bounds:
    """Intervals of modifier values on one block; `score` bounds the products. Emits code where it is asked."""

    def __init__(self, emitter: Emitter, space: AttentionSpace, block: Block, score: Interval, lanes: int) -> None:
        self.e = emitter
        self.space = space
        self.block = block
        self.score = score
        self.lanes = lanes
        self.memo: dict[int, Interval | None] = {}

    def learn(self, known: Mapping[Load, Interval]) -> None:
        """Takes what is known already of some values."""
        self.memo.update((id(load), interval) for load, interval in known.items())

    def of(self, inst: Inst) -> Interval | None:
        """The interval of `inst`, or None where nothing is known."""
        if id(inst) not in self.memo:
            found = self._find(inst)
            if found is None and inst.dtype == "bool":
                found = Interval(V(t.int_imm("bool", 0), "bool"), V(t.int_imm("bool", 1), "bool"))
            if found is not None:
                found = Interval(self.e.math.share(found.low), self.e.math.share(found.high))
            self.memo[id(inst)] = found
        return self.memo[id(inst)]

    def _find(self, inst: Inst) -> Interval | None:
        match inst:
            case Score():
                return self.score
            case Literal():
                value = self.e.math.const(inst.value, inst.dtype)
                return Interval(value, value)
            case Place():
                return self._place(inst)
            case Load():
                return self._scan(inst)
            case Apply():
                return self._apply(inst)
        return None

    # -- leaves -----------------------------------------------------------------------------------------------
    def _place(self, inst: Place) -> Interval | None:
        ends = self._ends(inst.index)
        if ends is None or not inst.dtype.startswith("int"):
            return None
        low, high = (V(end, "int64") for end in ends)
        m = self.e.math
        return Interval(m.cast(low, inst.dtype), m.cast(high, inst.dtype))

    def _ends(self, ix: Ix) -> tuple[t.Expr, t.Expr] | None:
        """The least and the greatest value of an affine index on the block."""
        moving: dict[Var, tuple[t.Expr, t.Expr]] = {self.space.i: self.block.i, self.space.j: self.block.j}
        if ix.hidden() & set(moving):
            return None
        low: dict[Var, t.Expr] = {}
        high: dict[Var, t.Expr] = {}
        for var, (first, last) in moving.items():
            coef = ix.coef(var)
            rising = all(c >= 0 for _, c in coef.terms)
            if not rising and any(c >= 0 for _, c in coef.terms):
                return None
            low[var], high[var] = (first, last) if rising else (last, first)
        return self.e.index(ix, low), self.e.index(ix, high)

    def _scan(self, inst: Load) -> Interval | None:
        """Reads what the block reads of an operand."""
        by_row, by_column = (v in inst.address.vars() for v in (self.space.i, self.space.j))
        if inst.dtype not in ("float32", "bool", "int32", "int64", "uint8", "int8"):
            return None
        if by_column and inst.address.coef(self.space.j) != Dim.of(1):
            return None
        e, m = self.e, self.e.math
        storage = STORAGE.get(inst.stored, inst.stored)
        buffer = e.input(inst.slot, inst.stored)
        raw = "uint8" if inst.stored == "bool" else inst.dtype

        def get(row: t.Expr, column: t.Expr, lanes: int) -> V:
            at = e.index(inst.address, {self.space.i: t.Add(self.block.i[0], row),
                                        self.space.j: t.Add(self.block.j[0], column)})
            value = e.read(buffer, storage, at, lanes)
            return m.share(value if inst.stored == "bool" else e.unpack(value, inst.stored, inst.dtype))

        zero = e.i64(0)
        first = get(zero, zero, 1)
        floating = raw.startswith("float")
        wide = self.lanes * 4 if raw in ("uint8", "int8") else self.lanes
        least, most, bad = (e.local(name, raw, wide) for name in ("least", "most", "bad"))
        e.write(least, 0, first, wide)
        e.write(most, 0, first, wide)
        if floating:
            e.write(bad, 0, m.const(0, raw), wide)

        def take(value: V, lanes: int) -> None:
            low, high = (m.share(e.read(buffer, raw, 0, lanes)) for buffer in (least, most))
            if floating:  # these pass over NaN, which is kept beside them
                e.write(least, 0, m.select(m.lt(value, low), value, low), lanes)
                e.write(most, 0, m.select(m.lt(high, value), value, high), lanes)
                e.write(bad, 0, m.select(m.eq(value, value), e.read(bad, raw, 0, lanes), value), lanes)
            else:
                e.write(least, 0, m.minimum(low, value), lanes)
                e.write(most, 0, m.maximum(high, value), lanes)

        sizes = sorted({wide, self.lanes}, reverse=True)  # what whole registers leave, in vectors of floats' lanes
        ends = [zero, *(e.share(t.Mul(t.Div(self.block.columns, e.i64(n)), e.i64(n))) for n in sizes)]
        with e.loop("r", self.block.rows if by_row else 1) as r:
            if by_column:
                for n, start, end in zip(sizes, ends, ends[1:], strict=False):
                    with e.loop("c", t.Div(t.Sub(end, start), e.i64(n))) as c:
                        take(get(r, t.Add(start, t.Mul(c, e.i64(n))), n), n)
                self._rest(r, ends[-1], get, take)
            else:
                take(get(r, zero, 1), 1)
        low = self._across(e.read(least, raw, 0, wide), lambda a, b: self._smaller(a, b, floating))
        high = self._across(e.read(most, raw, 0, wide), lambda a, b: self._larger(a, b, floating))
        if floating:
            nan = self._across(e.read(bad, raw, 0, wide), m.add)
            return Interval(m.add(low, nan), m.add(high, nan))
        if inst.stored == "bool":
            return Interval(m.ne(low, m.const(0, raw)), m.ne(high, m.const(0, raw)))
        return Interval(low, high)

    def _rest(self, r: t.Expr, done: t.Expr, get: Callable[[t.Expr, t.Expr, int], V],
              take: Callable[[V, int], None]) -> None:
        """The columns after the whole vectors: one that ends with the block, neighbours before it included."""
        e, block = self.e, self.block
        left = t.Sub(block.columns, done)
        with e.block() as vector:
            take(get(r, t.Sub(block.columns, e.i64(self.lanes)), self.lanes), self.lanes)
        with e.block() as single, e.loop("c", left, done) as c:
            take(get(r, c, 1), 1)
        room = t.LE(e.i64(self.lanes), t.Add(block.j[1], e.i64(1)))
        with e.when(t.LT(e.i64(0), left)):
            e.stmts.append(t.IfThenElse(room, t.sequence(vector), t.sequence(single)))

    def _smaller(self, a: V, b: V, floating: bool) -> V:
        m = self.e.math
        return m.select(m.lt(a, b), a, b) if floating else m.minimum(a, b)

    def _larger(self, a: V, b: V, floating: bool) -> V:
        m = self.e.math
        return m.select(m.lt(a, b), b, a) if floating else m.maximum(a, b)

    def _across(self, value: V, join: Callable[[V, V], V]) -> V:
        value = self.e.math.share(value)
        while value.lanes > 1:
            value = self.e.math.share(join(self.e.math.half(value, False), self.e.math.half(value, True)))
        return value

    # -- operations -------------------------------------------------------------------------------------------
    def _apply(self, inst: Apply) -> Interval | None:
        name, m = operator(inst), self.e.math
        if name == "Where":
            return self._where(inst)
        args = [self.of(a) for a in inst.operands]
        if any(a is None for a in args):
            return None
        known = [a for a in args if a is not None]
        dtypes = {a.dtype for a in inst.operands}
        if name in _COMPARISONS or name == "Equal":
            return self._compare(name, known) if dtypes != {"bool"} else None
        match name:
            case "And" | "Or":
                join = m.land if name == "And" else m.lor
                return Interval(join(known[0].low, known[1].low), join(known[0].high, known[1].high))
            case "Not":
                return Interval(m.lnot(known[0].high), m.lnot(known[0].low))
            case "Add":
                return Interval(m.add(known[0].low, known[1].low), m.add(known[0].high, known[1].high))
            case "Sub":
                return Interval(m.sub(known[0].low, known[1].high), m.sub(known[0].high, known[1].low))
            case "Neg":
                return Interval(m.neg(known[0].high), m.neg(known[0].low))
            case "Mul":
                return self._scaled(inst, known)
            case "Abs":
                zero, below = m.const(0, inst.dtype), m.neg(known[0].high)
                return Interval(m.maximum(zero, m.maximum(known[0].low, below)),
                                m.maximum(m.neg(known[0].low), known[0].high))
            case "Min" | "Max":
                pick = m.minimum if name == "Min" else m.maximum
                return Interval(*(reduce(pick, [getattr(k, end) for k in known]) for end in ("low", "high")))
            case "Div" if inst.dtype.startswith("int"):
                by = inst.operands[1]
                if isinstance(by, Literal) and by.value > 0:  # towards zero, which is monotone
                    return Interval(*(m.idiv(end, known[1].low) for end in (known[0].low, known[0].high)))
            case "Mod" if inst.dtype.startswith("int"):
                return self._remainder(inst, known[0])
            case "Floor" | "Ceil" | "Round" | "Clip" | "quotient":
                return self._rising(inst, known[0])
            case "Tanh":
                one = m.const(1.0, inst.dtype)
                return Interval(m.neg(one), one)
            case "Cast":
                return self._cast(inst, known[0])
        return None

    def _rising(self, inst: Apply, a: Interval) -> Interval | None:
        """A function of the first operand that never falls; the others are constants."""
        rest = inst.operands[1:]
        constants = [one.value for one in rest if isinstance(one, Literal)]
        if len(constants) < len(rest) or (operator(inst) == "quotient" and not 0 < constants[0] < float("inf")):
            return None
        others = [self.e.math.const(value, inst.dtype) for value in constants]
        low, high = (inst.point.fn(self.e.math, [end, *others]) for end in (a.low, a.high))
        return Interval(low, high)

    def _remainder(self, inst: Apply, a: Interval) -> Interval | None:
        """x mod c for a constant c > 0, with the sign of c: it rises where all x lie between two multiples of c."""
        m, by = self.e.math, inst.operands[1]
        if not isinstance(by, Literal) or by.value <= 0 or "fmod=1" in inst.point.key:
            return None
        c, zero, one = (m.const(value, inst.dtype) for value in (by.value, 0, 1))

        def whole(x: V) -> V:
            below = m.lt(x, zero)
            return m.share(m.select(below, m.sub(m.idiv(m.add(x, one), c), one), m.idiv(x, c)))

        low, high = (m.share(end) for end in (a.low, a.high))
        first, last = whole(low), whole(high)
        together = m.share(m.eq(first, last))
        start = m.mul(first, c)
        return Interval(m.select(together, m.sub(low, start), zero),
                        m.select(together, m.sub(high, start), m.sub(c, one)))

    def _scaled(self, inst: Apply, known: list[Interval]) -> Interval | None:
        """A product; that of two intervals lies between those of their ends, which are NaN for 0 times infinity."""
        m = self.e.math
        for k in (0, 1):
            factor = inst.operands[k]
            if isinstance(factor, Literal) and abs(factor.value) < float("inf") and factor.value != 0:
                a, b = (m.mul(end, known[k].low) for end in (known[1 - k].low, known[1 - k].high))
                return Interval(a, b) if factor.value > 0 else Interval(b, a)
        if inst.dtype != "float32":
            return None
        ends = [m.share(m.mul(a, b)) for a in (known[0].low, known[0].high) for b in (known[1].low, known[1].high)]
        return Interval(reduce(m.minimum, ends), reduce(m.maximum, ends))

    def _cast(self, inst: Apply, a: Interval) -> Interval | None:
        m, source = self.e.math, inst.operands[0].dtype
        if inst.dtype == "bool":
            if source == "bool":
                return a
            zero = m.const(0, source)
            apart = m.lor(m.lt(zero, a.low), m.lt(a.high, zero))
            return Interval(apart, m.lnot(m.land(m.eq(a.low, zero), m.eq(a.high, zero))))
        if source == "bool" or (source.startswith("int") and inst.dtype in ("int64", "float32", "float64")):
            return Interval(m.cast(a.low, inst.dtype), m.cast(a.high, inst.dtype))
        return a if source == inst.dtype else None

    def _compare(self, name: str, args: list[Interval]) -> Interval:
        m = self.e.math
        if name == "Equal":
            low = m.land(m.eq(args[0].low, args[0].high),
                         m.land(m.eq(args[1].low, args[1].high), m.eq(args[0].low, args[1].low)))
            return Interval(low, m.lnot(m.lor(m.lt(args[0].high, args[1].low), m.lt(args[1].high, args[0].low))))
        sign, swapped = _COMPARISONS[name]
        a, b = args[::-1] if swapped else args
        compare = m.lt if sign == "<" else m.le
        opposite = m.le if sign == "<" else m.lt
        return Interval(compare(a.high, b.low), m.lnot(opposite(b.high, a.low)))

    def _where(self, inst: Apply) -> Interval | None:
        m = self.e.math
        condition, a, b = (self.of(one) for one in inst.operands)
        if a is None or b is None:
            return None
        if inst.dtype == "bool":
            return Interval(m.land(a.low, b.low), m.lor(a.high, b.high))
        low = m.select(m.lt(b.low, a.low), b.low, a.low)
        high = m.select(m.lt(a.high, b.high), b.high, a.high)
        # A NaN bound must survive: the other side says nothing about these elements.
        for end in (b.low, a.low):
            low = m.select(m.eq(end, end), low, end)
        for end in (b.high, a.high):
            high = m.select(m.eq(end, end), high, end)
        if condition is None:
            return Interval(low, high)
        never = m.lnot(condition.high)
        return Interval(m.select(condition.low, a.low, m.select(never, b.low, low)),
                        m.select(condition.low, a.high, m.select(never, b.high, high)))
