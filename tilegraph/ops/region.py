"""The planner of regions: whether a lowered region can be one kernel, and how.

- the *row space* and the *columns*: every reduction of the region runs over exactly the column loops; a region without
  reductions has its last loop as columns;
- every value is pulled from the outputs through index maps (`tilegraph.ops.index`), so views and broadcasts vanish;
- loops are split where a reshape needs it and merged where all addresses allow it;
- the innermost loop is contiguous or constant in every address, so that it becomes vector lanes; where the columns are
  not (a reduction over outer axes), a row loop that is becomes the lanes, see `Space.across`; where no loop is,
  operands are read element by element (`ops.space.uneven`).

What cannot be arranged is declined with the reason.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

from tilegraph.ops.broadcast import project
from tilegraph.ops.index import Dynamic, Ix, SplitNeeded, Var, flat_address, reshape_indices
from tilegraph.ops.loops import covers, merge, mergeable, with_merged
from tilegraph.ops.prims import Concat, Const, Decline, Extent, Input, Lowered, Pick, Prim, Reduce, Scan, View
from tilegraph.ops.pull import Puller
from tilegraph.ops.space import (
    Choose,
    Fold,
    Inst,
    Literal,
    Running,
    Space,
    Store,
    index_of,
    indices_of,
    rewritten,
    uneven,
)
from tilegraph.spec.dims import Dim, DimLike, Shape

MAX_CELLS = 32  # kernels have code for each combination of the parts of concatenations


def plan(lowered: Lowered) -> Space:
    """The kernel's space, or `Decline`."""
    return _Region(lowered).plan()


def plan_small(lowered: Lowered) -> Space:
    """The same for what is worth a call between other kernels only: copies and single elements too."""
    return _Region(lowered, small=True).plan()


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


class _Region(Puller[Space]):
    """Its loops are those of the output with the most elements; `cols` are those that the reductions run over.

    `appended`: the columns are loops of their own, after those of the output.
    """

    def __init__(self, lowered: Lowered, *, small: bool = False) -> None:
        self.stored = lowered.stored
        self.outputs = [_unshaped(p) for p in lowered.outputs]
        self.small = small
        if any((isinstance(p, Input) and not small) or isinstance(p, (Const, Extent)) for p in self.outputs):
            raise Decline("an output is only a copy or a constant")
        self.main = 0
        for k, prim in enumerate(self.outputs):
            if _more(Dim.product(prim.shape), Dim.product(self.outputs[self.main].shape)):
                self.main = k
        super().__init__(self.outputs[self.main])
        if small and not self.loops and all(p.shape for p in self.outputs):  # a single element: a loop of one
            self.loops.append(Var("i0", Dim.of(1)))
            self.index[-1] = Ix.of(self.loops[0])
        self.cols: list[Var] | None = None
        self.appended = False
        self.descending: bool | None = None  # None: nothing runs along the columns

    def groups(self) -> list[list[Var]]:
        return [self.loops, self.cols or []]

    def split(self, var: Var, inner: Dim) -> None:
        super().split(var, inner)
        if not self.appended:
            self.cols = None

    def build(self) -> Space:
        self.breaks: dict[Var, set[Dim]] = {}
        found: dict[int, tuple[Inst, tuple[Ix, ...]]] = {}
        at = tuple(self.index)
        found[self.main] = (self.pull(self.root, at), at)
        for k, prim in enumerate(self.outputs):
            if k != self.main:
                found[k] = self._other(prim, at)
        if self.cols is None:
            self.cols = [self.loops[-1]] if self.loops else []
        cols = self.cols
        rows = [v for v in self.loops if v not in cols]
        stores = []
        for k, prim in enumerate(self.outputs):
            inst, indices = found[k]
            address = flat_address(indices, prim.shape)
            per_row = not (address.vars() & set(cols)) and (self.appended or bool(cols))
            if not covers(address, rows if per_row else [*rows, *cols]):
                raise Decline("an output would not be written exactly once by the kernel's loops")
            stores.append(Store(k, inst, address, self.stored[k], per_row))
        if not any(s.per_row for s in stores) and not cols:
            raise Decline("a single element")
        space = Space(tuple(rows), tuple(cols), tuple(stores), self._ordered_breaks(), None, bool(self.descending))
        if any(s.per_row for s in stores) and not rows and not any(isinstance(i, Fold) for i in space.insts()):
            raise Decline("a single element")  # without rows or reductions there is one pass over the columns only
        return _vectorisable(_merged(space))

    def _ordered_breaks(self) -> dict[Var, tuple[Dim, ...]]:
        result = {}
        for var, bounds in self.breaks.items():
            numbers = {d: d.as_int() for d in bounds}
            if None not in numbers.values():  # an unrolled loop joins many, and each part is asked for alone, too
                result[var] = tuple(sorted(bounds, key=lambda d: numbers[d] or 0))
                continue
            # The number of bounds below decides the order, if it is an order.
            ordered = sorted(bounds, key=lambda d: sum(1 for o in bounds if _at_least(d, o)))
            for low, high in pairwise(ordered):
                if not _at_least(high, low):
                    raise Decline(f"concatenations meet at {low} and {high}: which comes first is not known")
            result[var] = tuple(ordered)
        cells = math.prod(len(bounds) + 1 for bounds in result.values())
        if cells > MAX_CELLS:
            raise Decline(f"concatenations cut the kernel into {cells} parts")
        return result

    def _other(self, prim: Prim, root_index: tuple[Ix, ...]) -> tuple[Inst, tuple[Ix, ...]]:
        """Another output: where it is pulled anyway, or element for element with the root or with the rows."""
        cols = set(self.cols or [])
        rows = [v for v in self.loops if v not in cols]
        for indices, inst in self.pulled.get(id(prim), {}).items():
            address = flat_address(indices, prim.shape)
            wanted = rows if cols and not (address.vars() & cols) else self.loops
            # A part of a concatenation is pulled over all of its loops: the number of elements must agree too.
            if covers(address, wanted) and Dim.product(v.extent for v in wanted) == Dim.product(prim.shape):
                return inst, indices
        size = Dim.product(prim.shape)
        if size == Dim.product(self.root.shape):
            indices = reshape_indices(root_index, self.root.shape, prim.shape)
            return self.pull(prim, indices), indices
        if cols and size == Dim.product(v.extent for v in rows):
            indices = reshape_indices(tuple(Ix.of(v) for v in rows), tuple(v.extent for v in rows), prim.shape)
            return self.pull(prim, indices), indices
        if not cols:
            for k in range(len(self.loops) - 1, 0, -1):
                if Dim.product(v.extent for v in self.loops[:k]) == size:
                    rows = self.loops[:k]
                    indices = reshape_indices(tuple(Ix.of(v) for v in rows), tuple(v.extent for v in rows), prim.shape)
                    return self.pull(prim, indices), indices  # a reduction in it makes the rest columns
        raise Decline(f"outputs of shapes {_show(self.root.shape)} and {_show(prim.shape)} in one kernel")

    def start(self) -> None:
        super().start()
        self._dynamic: dict[tuple[int, Dim], Dynamic] = {}
        self.descending = None

    def picked(self, prim: Pick, at: tuple[Ix, ...]) -> Inst:
        computed = []
        for index, extent in zip(prim.indices, prim.extents, strict=True):
            value = self.pull(index, project(at, index.shape))
            if isinstance(value, Literal):
                computed.append(Ix.of(int(value.value)))
                continue
            known = self._dynamic.get((id(value), extent))
            if known is None:
                known = Dynamic(f"d{len(self._dynamic)}", value, extent, frozenset(self._changing(value)))
                self._dynamic[id(value), extent] = known
            computed.append(Ix({known: Dim.of(1)}))
        return self.pull(prim.source, prim.pull(at, tuple(computed)))

    def _changing(self, inst: Inst) -> set[Var]:
        """The loops that `inst` changes with."""
        ix = index_of(inst)
        found = set() if ix is None else ix.vars()
        for part in inst.args:
            found |= self._changing(part)
        if isinstance(inst, Choose):
            found.add(inst.var)
        return found - set(self.cols or ()) if isinstance(inst, Fold) else found

    def operation(self, prim: Prim, at: tuple[Ix, ...]) -> Inst:
        match prim:
            case Reduce():
                return self._fold(prim, at)
            case Concat():
                return self._concat(prim, at)
            case Scan():
                return self._scan(prim, at)
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
            if Dim.product(prim.shape) != Dim.product(v.extent for v in self.loops):
                raise Decline(f"a reduction over {size} elements does not match the loops of the output")
            fresh = [Var(f"r{k}", d) for k, d in enumerate(reduced) if d != 1]
            self.cols, self.appended = list(fresh), True
        if Dim.product(v.extent for v in self.cols) != size:
            raise Decline(f"reductions over {size} and over {Dim.product(v.extent for v in self.cols)} elements")
        if used & set(self.cols):
            raise Decline("a reduction that depends on the column it reduces")
        inside = reshape_indices(tuple(Ix.of(v) for v in self.cols), tuple(v.extent for v in self.cols), reduced)
        return Fold(prim.dtype, prim.kind, self.pull(prim.operand, (*indices, *inside)))

    def _scan(self, prim: Scan, indices: tuple[Ix, ...]) -> Inst:
        if prim.shape[-1] == 1 and not prim.exclusive:
            return self.pull(prim.operand, indices)
        found = indices[-1].single()
        if found is None or found[1] != 0 or any(found[0] in ix.vars() for ix in indices[:-1]):
            raise Decline("a running sum along a loop that views change")
        column = found[0]
        if self.cols is None:
            self.cols = [column]
        if self.cols != [column]:
            raise Decline("a running sum along another loop than the columns")
        if self.descending not in (None, prim.reverse):
            raise Decline("running sums in both directions")
        self.descending = prim.reverse
        return Running(prim.dtype, prim.kind, self.pull(prim.operand, indices), prim.exclusive)

    def _columns(self, size: Dim, used: set[Var]) -> list[Var] | None:
        """The loops that make up `size` elements and that the reduction's place does not use, innermost first."""
        total = Dim.of(1)
        for k in range(len(self.loops) - 1, -1, -1):
            if self.loops[k] in used:
                break
            total = total * self.loops[k].extent
            if total == size:
                return self.loops[k:]
            inner = size.exact_div(Dim.product(v.extent for v in self.loops[k + 1:]))
            if inner is not None and inner != 1 and _more(total, size) \
                    and self.loops[k].extent.exact_div(inner) is not None:
                raise SplitNeeded(self.loops[k], inner)
        unused = [v for v in self.loops if v not in used]
        return unused if unused and Dim.product(v.extent for v in unused) == size else None

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
        step, numbers = coef.as_int(), [(b - rest.const).as_int() for b in bounds]
        if not rest.terms and step is not None and step > 0 and None not in numbers:  # every step-th element
            return atom, tuple(Dim.of(-(-n // step)) for n in numbers if n is not None)
        scaled = [b.exact_div(coef) for b in bounds]
        if rest.below(coef) and all(s is not None for s in scaled):
            return atom, tuple(s for s in scaled if s is not None)
    raise Decline("the parts of a concatenation meet inside a merged loop")


def _merged(space: Space) -> Space:
    """Merges neighbouring loops that every address walks as one, rows with columns if nothing is reduced."""
    for _ in range(len(space.rows) + len(space.cols)):
        values = list(space.insts())
        places = [*(s.address for s in space.stores), *indices_of(values)]
        reduces = any(isinstance(i, (Fold, Running)) for i in values)
        groups = [space.rows, space.cols] if reduces else [(*space.rows, *space.cols)]
        pair = next((p for group in groups if (p := mergeable(group, places, space.breaks))), None)
        if pair is None:
            return space
        one, mapping = merge(*pair)
        done = rewritten(values, mapping)
        stores = tuple(replace(s, inst=done[id(s.inst)], address=s.address.replace(mapping)) for s in space.stores)
        rows, cols = (with_merged(loops, *pair, one) for loops in (space.rows, space.cols))
        space = replace(space, rows=rows, cols=cols, stores=stores)
    return space


def _vectorisable(space: Space) -> Space:
    """Finds the loop that is contiguous or constant wherever it is used: the innermost column, or else a row.

    Where there is none, operands are taken element by element; outputs never are.
    """
    if not space.cols:
        raise Decline("no column loop is left")
    if any(isinstance(i, Running) for i in space.insts()):
        return _one_after_another(space)
    if _contiguous(space, space.cols[-1]):
        if all(uneven(i, space.cols[-1]) is None for i in space.insts()):
            return space
        fallback: Space | None = space
    else:
        fallback = None
    if not space.breaks and any(isinstance(i, Fold) for i in space.insts()):
        for var in reversed(space.rows):
            if _contiguous(space, var):
                across = replace(space, rows=(*(v for v in space.rows if v != var), var), across=var)
                if all(uneven(i, var) is None for i in space.insts()):
                    return across
                fallback = fallback or across
    if fallback is None:
        raise Decline("an output is not contiguous along the innermost axis")
    return fallback


def _one_after_another(space: Space) -> Space:
    """Columns depend on the ones before: vectors lie across the rows, or there are none."""
    if space.breaks:
        raise Decline("a running sum beside a concatenation")
    for var in reversed(space.rows):
        if _contiguous(space, var) and all(uneven(i, var) is None for i in space.insts()):
            return replace(space, rows=(*(v for v in space.rows if v != var), var), across=var)
    alone = Var("alone", Dim.of(1))
    return replace(space, rows=(*space.rows, alone), across=alone)


def _contiguous(space: Space, lanes: Var) -> bool:
    """Whether vectors along the loop `lanes` are stored as they are."""
    return all((store.per_row and lanes not in space.rows) or store.address.coef(lanes) == 1 for store in space.stores)


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
