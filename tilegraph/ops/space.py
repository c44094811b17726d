"""The iteration space of a kernel: which loops it has, and how each value is addressed by them.

`plan` decides whether a lowered region can be one kernel, and how:

- the *row space* and the *columns*: every reduction of the region runs over exactly the column loops; a region without
  reductions has its last loop as columns;
- every value is pulled from the outputs through index maps (`tilegraph.ops.index`), so views and broadcasts vanish;
- loops are split where a reshape needs it and merged where all addresses allow it;
- the innermost loop is contiguous or constant in every address, so that it becomes vector lanes.

What cannot be arranged is declined with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tilegraph.ops.broadcast import project
from tilegraph.ops.dtypes import BYTES
from tilegraph.ops.index import Ix, SplitNeeded, Var, flat_address, reshape_indices
from tilegraph.ops.prims import (
    Concat,
    Const,
    Decline,
    Extent,
    Input,
    Lowered,
    Point,
    Position,
    Prim,
    Reduce,
    View,
)
from tilegraph.spec.dims import Dim, DimLike, Shape


@dataclass(frozen=True, eq=False)
class Inst:
    """A value at a place: what the kernel evaluates."""

    dtype: str

    @property
    def args(self) -> tuple[Inst, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Load(Inst):
    slot: int
    stored: str
    address: Ix


@dataclass(frozen=True, eq=False)
class Literal(Inst):
    value: Any


@dataclass(frozen=True, eq=False)
class Place(Inst):
    """The value of an index expression (int64)."""

    index: Ix


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
class Choose(Inst):
    """`parts[k]` where bounds[k-1] <= var < bounds[k]; one more part than bounds."""

    var: Var
    bounds: tuple[Dim, ...]
    parts: tuple[Inst, ...]

    @property
    def args(self) -> tuple[Inst, ...]:
        return self.parts


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

    `breaks` lists, for a loop, the places where concatenated parts meet, in ascending order.
    """

    rows: tuple[Var, ...]
    cols: tuple[Var, ...]
    stores: tuple[Store, ...]
    breaks: Mapping[Var, tuple[Dim, ...]]

    def insts(self) -> Iterator[Inst]:
        """Every value once, operands first."""
        done: set[int] = set()
        stack: list[tuple[Inst, bool]] = [(s.inst, False) for s in reversed(self.stores)]
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

    def elements(self) -> Dim:
        return Dim.product(v.extent for v in (*self.rows, *self.cols))


def plan(lowered: Lowered) -> Space:
    """The kernel's space, or `Decline`."""
    builder = _Builder(lowered)
    for _ in range(24):
        try:
            return _vectorisable(_merge(builder.build()))
        except SplitNeeded as split:
            builder.split(split.var, split.inner)
    raise Decline("the index maps of its views have no common refinement")


def _unshaped(prim: Prim) -> Prim:
    """An output without trailing reshapes: they do not change where its elements lie in memory."""
    while isinstance(prim, View) and prim.key.startswith("reshape"):
        prim = prim.source
    return prim


def _more(a: Dim, b: Dim) -> bool:
    """Whether a has more elements than b, as far as one can tell."""
    difference = a - b
    static = difference.as_int()
    if static is not None:
        return static > 0
    return bool(difference.terms) and difference.terms[-1][1] > 0


def _at_least(a: DimLike, b: DimLike) -> bool:
    """Whether a >= b for certain."""
    return all(coef >= 0 for _, coef in (Dim.of(a) - Dim.of(b)).terms)


class _Builder:
    def __init__(self, lowered: Lowered) -> None:
        self.stored = lowered.stored
        self.outputs = [_unshaped(p) for p in lowered.outputs]
        if any(isinstance(p, (Input, Const, Extent)) for p in self.outputs):
            raise Decline("an output is only a copy or a constant")
        self.root = 0
        for k, prim in enumerate(self.outputs):
            if _more(Dim.product(prim.shape), Dim.product(self.outputs[self.root].shape)):
                self.root = k
        self.vars: list[Var] = []
        self.index: list[Ix] = []
        for k, extent in enumerate(self.outputs[self.root].shape):
            if extent == 1:
                self.index.append(Ix())
            else:
                self.vars.append(Var(f"i{k}", extent))
                self.index.append(Ix.of(self.vars[-1]))
        self.cols: list[Var] | None = None
        self.appended = False

    def split(self, var: Var, inner: Dim) -> None:
        outer_extent = var.extent.exact_div(inner)
        if outer_extent is None:
            raise Decline(f"extent {var.extent} does not divide by {inner}")
        outer, inside = Var(var.name + "o", outer_extent), Var(var.name + "i", inner)
        whole = Ix.of(outer) * inner + Ix.of(inside)
        self.index = [ix.replace({var: whole}) for ix in self.index]
        for group in (self.vars, self.cols or []):
            if var in group:
                at = group.index(var)
                group[at:at + 1] = [outer, inside]
        if not self.appended:
            self.cols = None

    def build(self) -> Space:
        self.memo: dict[tuple[int, tuple[Ix, ...]], Inst] = {}
        self.places: dict[int, list[tuple[Ix, ...]]] = {}
        self.breaks: dict[Var, set[Dim]] = {}
        self._leaves: dict[Any, Inst] = {}
        found: dict[int, tuple[Inst, tuple[Ix, ...]]] = {}
        at = tuple(self.index)
        found[self.root] = (self.pull(self.outputs[self.root], at), at)
        for k, prim in enumerate(self.outputs):
            if k != self.root:
                found[k] = self._other(prim, at)
        if self.cols is None:
            self.cols = [self.vars[-1]] if self.vars else []
        cols = self.cols
        rows = [v for v in self.vars if v not in cols]
        stores = []
        for k, prim in enumerate(self.outputs):
            inst, indices = found[k]
            address = flat_address(indices, prim.shape)
            per_row = not (address.vars() & set(cols)) and (self.appended or bool(cols))
            if not _covers(address, rows if per_row else [*rows, *cols]):
                raise Decline("an output would not be written exactly once by the kernel's loops")
            stores.append(Store(k, inst, address, self.stored[k], per_row))
        if not any(s.per_row for s in stores) and not cols:
            raise Decline("a single element")
        return Space(tuple(rows), tuple(cols), tuple(stores), self._ordered_breaks())

    def _ordered_breaks(self) -> dict[Var, tuple[Dim, ...]]:
        result = {}
        for var, bounds in self.breaks.items():
            # The number of bounds below decides the order, if it is an order.
            ordered = sorted(bounds, key=lambda d: sum(1 for o in bounds if _at_least(d, o)))
            for low, high in pairwise(ordered):
                if not _at_least(high, low):
                    raise Decline(f"concatenations meet at {low} and {high}: which comes first is not known")
            result[var] = tuple(ordered)
        return result

    def _other(self, prim: Prim, root_index: tuple[Ix, ...]) -> tuple[Inst, tuple[Ix, ...]]:
        """Another output: where it is pulled anyway, or element for element with the root or with the rows."""
        cols = set(self.cols or [])
        rows = [v for v in self.vars if v not in cols]
        for indices in self.places.get(id(prim), []):
            address = flat_address(indices, prim.shape)
            wanted = rows if cols and not (address.vars() & cols) else self.vars
            # A part of a concatenation is pulled over all of its loops: the number of elements must agree too.
            if _covers(address, wanted) and Dim.product(v.extent for v in wanted) == Dim.product(prim.shape):
                return self.memo[id(prim), indices], indices
        root = self.outputs[self.root]
        size = Dim.product(prim.shape)
        if size == Dim.product(root.shape):
            indices = reshape_indices(root_index, root.shape, prim.shape)
            return self.pull(prim, indices), indices
        if cols and size == Dim.product(v.extent for v in rows):
            indices = reshape_indices(tuple(Ix.of(v) for v in rows), tuple(v.extent for v in rows), prim.shape)
            return self.pull(prim, indices), indices
        if not cols:
            for k in range(len(self.vars) - 1, 0, -1):
                if Dim.product(v.extent for v in self.vars[:k]) == size:
                    rows = self.vars[:k]
                    indices = reshape_indices(tuple(Ix.of(v) for v in rows), tuple(v.extent for v in rows), prim.shape)
                    return self.pull(prim, indices), indices  # a reduction in it makes the rest columns
        raise Decline(f"outputs of shapes {_show(root.shape)} and {_show(prim.shape)} in one kernel")

    def pull(self, prim: Prim, indices: tuple[Ix, ...]) -> Inst:
        """The instance of `prim` at `indices`."""
        key = (id(prim), indices)
        if key in self.memo:
            return self.memo[key]
        self.places.setdefault(id(prim), []).append(indices)
        inst = self._pull(prim, indices)
        self.memo[key] = inst
        return inst

    def _leaf(self, inst: Inst, *key: Any) -> Inst:
        return self._leaves.setdefault((type(inst), inst.dtype, *key), inst)

    def _pull(self, prim: Prim, indices: tuple[Ix, ...]) -> Inst:
        match prim:
            case Input():
                address = flat_address(project(indices, prim.shape), prim.shape)
                return self._leaf(Load(prim.dtype, prim.slot, prim.stored, address), prim.slot, address)
            case Const():
                return self._leaf(Literal(prim.dtype, prim.value), repr(prim.value))
            case Extent():
                return self._leaf(Place(prim.dtype, Ix.of(prim.dim)), prim.dim)
            case Position():
                return self._leaf(Place(prim.dtype, indices[prim.axis]), indices[prim.axis])
            case Point():
                return Apply(prim.dtype, prim, tuple(self.pull(p, project(indices, p.shape)) for p in prim.operands))
            case View():
                return self.pull(prim.source, prim.pull(indices))
            case Reduce():
                return self._fold(prim, indices)
            case Concat():
                return self._concat(prim, indices)
        raise TypeError(type(prim).__name__)

    def _fold(self, prim: Reduce, indices: tuple[Ix, ...]) -> Inst:
        reduced = prim.operand.shape[len(prim.operand.shape) - prim.axes:]
        size = Dim.product(reduced)
        if size == 1:
            return self.pull(prim.operand, (*indices, *(Ix() for _ in reduced)))
        used: set[Var] = set()
        for ix in indices:
            used |= ix.vars()
        if self.cols is None:
            self.cols = self._columns(size, used)
        if self.cols is None:
            if Dim.product(prim.shape) != Dim.product(v.extent for v in self.vars):
                raise Decline(f"a reduction over {size} elements does not match the loops of the output")
            fresh = [Var(f"r{k}", d) for k, d in enumerate(reduced) if d != 1]
            self.cols, self.appended = list(fresh), True
        if Dim.product(v.extent for v in self.cols) != size:
            raise Decline(f"reductions over {size} and over {Dim.product(v.extent for v in self.cols)} elements")
        if used & set(self.cols):
            raise Decline("a reduction that depends on the column it reduces")
        inside = reshape_indices(tuple(Ix.of(v) for v in self.cols), tuple(v.extent for v in self.cols), reduced)
        return Fold(prim.dtype, prim.kind, self.pull(prim.operand, (*indices, *inside)))

    def _columns(self, size: Dim, used: set[Var]) -> list[Var] | None:
        """The innermost loops that make up `size` elements and that the reduction's place does not use."""
        total = Dim.of(1)
        for k in range(len(self.vars) - 1, -1, -1):
            if self.vars[k] in used:
                return None
            total = total * self.vars[k].extent
            if total == size:
                return self.vars[k:]
            inner = size.exact_div(Dim.product(v.extent for v in self.vars[k + 1:]))
            if inner is not None and inner != 1 and _more(total, size) \
                    and self.vars[k].extent.exact_div(inner) is not None:
                raise SplitNeeded(self.vars[k], inner)
        return None

    def _concat(self, prim: Concat, indices: tuple[Ix, ...]) -> Inst:
        at = indices[prim.axis]
        starts = [Dim.of(0)]
        for part in prim.parts:
            starts.append(starts[-1] + part.shape[prim.axis])

        def pulled(k: int) -> Inst:
            inside = (*indices[:prim.axis], at - starts[k], *indices[prim.axis + 1:])
            chosen = prim.parts[k]
            return self.pull(chosen, project(inside, chosen.shape))

        if not at.terms:
            position = at.const.as_int()
            for k in range(len(prim.parts)):
                end = starts[k + 1].as_int()
                if position is not None and end is not None and position < end:
                    return pulled(k)
            raise Decline("a constant position in a concatenation of symbolic extents")
        var, bounds = _decide(at, starts[1:-1])
        # A slice of a concatenation may miss whole parts: their bounds lie outside of the loop.
        first = sum(1 for b in bounds if _at_least(0, b))
        last = len(bounds) - sum(1 for b in bounds if _at_least(b, var.extent))
        if first >= last:
            return pulled(min(first, last))
        inside = bounds[first:last]
        if not all(_at_least(b, 0) and _at_least(var.extent, b) for b in inside):
            raise Decline("the parts of a concatenation may meet outside of the loop")
        self.breaks.setdefault(var, set()).update(inside)
        return Choose(prim.dtype, var, inside, tuple(pulled(k) for k in range(first, last + 1)))


def _decide(at: Ix, bounds: list[Dim]) -> tuple[Var, tuple[Dim, ...]]:
    """The loop whose value alone tells on which side of each bound `at` lies, and the bounds in its units."""
    single = at.single()
    if single is not None:
        var, offset = single
        return var, tuple(b - offset for b in bounds)
    for atom, coef in at.terms:
        if not isinstance(atom, Var):
            continue
        rest = at - Ix({atom: coef})
        scaled = [b.exact_div(coef) for b in bounds]
        if rest.below(coef) and all(s is not None for s in scaled):
            return atom, tuple(s for s in scaled if s is not None)
    raise Decline("the parts of a concatenation meet inside a merged loop")


def _covers(address: Ix, loops: list[Var]) -> bool:
    """Whether `address` runs over 0 .. product-1, each once, as the loops run."""
    if address.const != 0 or any(not isinstance(a, Var) for a, _ in address.terms):
        return False
    left = dict(address.terms)
    if set(left) != set(loops):
        return False
    stride = Dim.of(1)
    while left:
        step = next((v for v, c in left.items() if c == stride), None)
        if step is None:
            return False
        del left[step]
        assert isinstance(step, Var)
        stride = stride * step.extent
    return True


def _rewrite(space: Space, mapping: Mapping[Var, Ix], rows: tuple[Var, ...], cols: tuple[Var, ...]) -> Space:
    done: dict[int, Inst] = {}
    for inst in space.insts():
        match inst:
            case Load():
                new: Inst = replace(inst, address=inst.address.replace(mapping))
            case Place():
                new = replace(inst, index=inst.index.replace(mapping))
            case Apply():
                new = replace(inst, operands=tuple(done[id(a)] for a in inst.operands))
            case Fold():
                new = replace(inst, operand=done[id(inst.operand)])
            case Choose():
                new = replace(inst, parts=tuple(done[id(a)] for a in inst.parts))
            case _:
                new = inst
        done[id(inst)] = new
    stores = tuple(replace(s, inst=done[id(s.inst)], address=s.address.replace(mapping)) for s in space.stores)
    return Space(rows, cols, stores, space.breaks)


def addresses(space: Space) -> list[Ix]:
    """Every index expression of the kernel."""
    found = [s.address for s in space.stores]
    for inst in space.insts():
        if isinstance(inst, Load):
            found.append(inst.address)
        elif isinstance(inst, Place):
            found.append(inst.index)
    return found


def _merge(space: Space) -> Space:
    """Merges neighbouring loops that every address walks as one."""
    for _ in range(len(space.rows) + len(space.cols)):
        pair = _mergeable(space)
        if pair is None:
            return space
        outer, inner = pair
        one = Var(outer.name + inner.name, outer.extent * inner.extent)

        def fuse(loops: tuple[Var, ...], outer: Var = outer, inner: Var = inner, one: Var = one) -> tuple[Var, ...]:
            return tuple(one if v == inner else v for v in loops if v != outer)

        mapping = {outer: Ix(), inner: Ix.of(one)}
        space = _rewrite(space, mapping, fuse(space.rows), fuse(space.cols))
    return space


def _mergeable(space: Space) -> tuple[Var, Var] | None:
    everything = addresses(space)
    hidden: set[Var] = set()
    for ix in everything:
        hidden |= ix.hidden()
    groups = [space.rows, space.cols]
    if not any(isinstance(i, Fold) for i in space.insts()):
        groups = [(*space.rows, *space.cols)]
    for group in groups:
        for outer, inner in zip(reversed(group[:-1]), reversed(group[1:]), strict=True):
            if {outer, inner} & (hidden | set(space.breaks)):
                continue
            if all(ix.coef(outer) == ix.coef(inner) * inner.extent for ix in everything):
                return outer, inner
    return None


def _vectorisable(space: Space) -> Space:
    """Checks that the innermost loop is contiguous or constant wherever it is used."""
    if not space.cols:
        raise Decline("no column loop is left")
    lanes = space.cols[-1]
    for inst in space.insts():
        if isinstance(inst, (Load, Place)):
            ix = inst.address if isinstance(inst, Load) else inst.index
            if lanes in ix.hidden():
                raise Decline("a view divides the innermost index")
            if isinstance(inst, Load) and ix.coef(lanes) not in (Dim.of(0), Dim.of(1)):
                raise Decline(f"an operand is read with stride {ix.coef(lanes)} along the innermost axis")
    for store in space.stores:
        if not store.per_row and store.address.coef(lanes) != 1:
            raise Decline("an output is not contiguous along the innermost axis")
    return space


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


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
