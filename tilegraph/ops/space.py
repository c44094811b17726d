"""What a kernel evaluates: values at places of its loops.

A value is an `Inst`; `ops.region`, `ops.attention` and `ops.gemm` make them from prims. `Space` is the kernel of a
region: its loops (rows and columns) and its stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.index import Ix, Var
from tilegraph.ops.prims import Point
from tilegraph.spec.dims import Dim

LEAST_SQUARE = 4  # rows and columns: smaller squares gain nothing from being turned


@dataclass(frozen=True, eq=False)
class Inst:
    """A value at a place: what the kernel evaluates."""

    dtype: str

    @property
    def args(self) -> tuple[Inst, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Load(Inst):
    """An element of the kernel's input `slot`; of its own output -1 - slot where that is negative.

    `present`: extents that a run may have as 0 while the loops go on; then the element does not exist, and is 0.
    """

    slot: int
    stored: str
    address: Ix
    present: tuple[Dim, ...] = ()

    @property
    def args(self) -> tuple[Inst, ...]:
        return tuple(d.value for d in self.address.dynamic)


@dataclass(frozen=True, eq=False)
class Literal(Inst):
    value: Any


@dataclass(frozen=True, eq=False)
class Place(Inst):
    """The value of an index expression (int64)."""

    index: Ix

    @property
    def args(self) -> tuple[Inst, ...]:
        return tuple(d.value for d in self.index.dynamic)


@dataclass(frozen=True, eq=False)
class Apply(Inst):
    point: Point
    operands: tuple[Inst, ...]

    @property
    def args(self) -> tuple[Inst, ...]:
        return self.operands


@dataclass(frozen=True, eq=False)
class Fold(Inst):
    """A reduction of `operand` over all column loops."""

    kind: str
    operand: Inst

    @property
    def args(self) -> tuple[Inst, ...]:
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Running(Inst):
    """What a reduction of `operand` has come to at this column, which is the only column loop."""

    kind: str
    operand: Inst
    exclusive: bool

    @property
    def args(self) -> tuple[Inst, ...]:
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Choose(Inst):
    """`parts[k]` where bounds[k-1] <= var < bounds[k]; one more part than bounds."""

    var: Var
    bounds: tuple[Dim, ...]
    parts: tuple[Inst, ...]

    @property
    def args(self) -> tuple[Inst, ...]:
        return self.parts


def insts(*roots: Inst) -> Iterator[Inst]:
    """Every value of `roots` and below them once, operands first."""
    done: set[int] = set()
    stack: list[tuple[Inst, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        inst, ready = stack.pop()
        if id(inst) in done:
            continue
        if ready:
            done.add(id(inst))
            yield inst
        else:
            stack.append((inst, True))
            stack.extend((a, False) for a in reversed(inst.args) if id(a) not in done)


def index_of(inst: Inst) -> Ix | None:
    """Where a `Load` reads, or what a `Place` is; None for other values."""
    if isinstance(inst, Load):
        return inst.address
    return inst.index if isinstance(inst, Place) else None


def uneven(inst: Inst, lanes: Var) -> str | None:
    """Why vectors along `lanes` take `inst` from memory, or count it, one element at a time; None where they do not."""
    ix = index_of(inst)
    if ix is None:
        return None
    if lanes in ix.hidden():
        return "a view divides the innermost index" if not ix.dynamic else "an index is computed"
    if isinstance(inst, Load) and ix.coef(lanes) not in (Dim.of(0), Dim.of(1)):
        return f"an operand is read with stride {ix.coef(lanes)} along the innermost axis"
    return None


def indices_of(values: Iterable[Inst]) -> list[Ix]:
    """The index expressions of `values`."""
    return [ix for inst in values if (ix := index_of(inst)) is not None]


def rewritten(values: Iterable[Inst], mapping: Mapping[Var, Ix]) -> dict[int, Inst]:
    """`values` (operands first) with loops replaced in their index expressions, by the identity of the old ones."""
    done: dict[int, Inst] = {}
    for inst in values:
        match inst:
            case Load():
                new: Inst = replace(inst, address=inst.address.replace(mapping, done))
            case Place():
                new = replace(inst, index=inst.index.replace(mapping, done))
            case Apply():
                new = replace(inst, operands=tuple(done[id(a)] for a in inst.operands))
            case Fold() | Running():
                new = replace(inst, operand=done[id(inst.operand)])
            case Choose():
                new = replace(inst, parts=tuple(done[id(a)] for a in inst.parts))
            case _:
                new = inst
        done[id(inst)] = new
    return done


@dataclass(frozen=True)
class Store:
    """Output `output` written at `address`, once a row if `per_row`."""

    output: int
    inst: Inst
    address: Ix
    stored: str
    per_row: bool


@dataclass(frozen=True)
class Space:
    """A kernel's loops (outermost first) and what it evaluates in them.

    `breaks` lists, for a loop, the places where concatenated parts meet, in ascending order. `across`: the row loop
    along which vectors lie, where it is one and not the innermost column: then many rows are reduced at a time.
    `descending`: columns run from the last to the first.
    """

    rows: tuple[Var, ...]
    cols: tuple[Var, ...]
    stores: tuple[Store, ...]
    breaks: Mapping[Var, tuple[Dim, ...]]
    across: Var | None = None
    descending: bool = False

    @property
    def lanes(self) -> Var:
        """The loop along which vectors lie."""
        return self.cols[-1] if self.across is None else self.across

    def insts(self) -> Iterator[Inst]:
        """Every value once, operands first."""
        return insts(*(s.inst for s in self.stores))

    def elements(self) -> Dim:
        return Dim.product(v.extent for v in (*self.rows, *self.cols))


def traffic(space: Space) -> tuple[Dim, Dim]:
    """(bytes read, bytes written), every distinct element of an input once."""
    read: dict[tuple[int, Ix], Dim] = {}
    for inst in space.insts():
        if isinstance(inst, Load):
            count = Dim.product(v.extent for v in inst.address.vars())
            read[inst.slot, inst.address] = count * BYTES[inst.stored]
    written = Dim.of(0)
    for store in space.stores:
        written = written + Dim.product(v.extent for v in store.address.vars()) * BYTES[store.stored]
    return sum(read.values(), Dim.of(0)), written


def crossed(space: Space) -> Var | None:
    """The row loop along which all operands are contiguous that the lanes read with a stride; None where there is none.

    Such operands can be read in squares of both loops and turned in registers, if nothing is reduced or concatenated.
    """
    if space.across is not None or space.breaks or any(s.per_row for s in space.stores):
        return None
    lanes, found = space.lanes, []
    if _small(lanes.extent):
        return None
    for inst in space.insts():
        if isinstance(inst, (Fold, Running, Choose)):
            return None
        if uneven(inst, lanes) is not None:
            if not isinstance(inst, Load) or inst.address.dynamic or inst.present:
                return None
            found.append(inst.address)
    for var in reversed((*space.rows, *space.cols[:-1])):
        turned = all(ix.coef(var) == 1 and not {var, lanes} & ix.hidden() for ix in found)
        if found and turned and not _small(var.extent):
            return var
    return None


def _small(extent: Dim) -> bool:
    size = extent.as_int()
    return size is not None and size < LEAST_SQUARE
