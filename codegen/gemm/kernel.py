"""One TIR function for any `GemmSpace`.

The matrix lies packed in panels of a few vectors, [panel][k][column in the panel], the last one filled up with zeros;
the left operand is read where it is. A unit of work is a block of rows times a panel, so that the panel is reused from
the level 2 cache. Within it, groups of rows times the panel's vectors are accumulated in registers, `CHUNK` steps of
k at a time: the layout of Goto and van de Geijn 2008 without packing of the left operand, as a group's rows stay in the
caches anyway. The group then goes through memory to the epilogue, which costs little beside its multiplications. Where
there are several matrices, a unit is a panel of each, with which a group of rows is multiplied in turn. Products of the
same rows with results of their own are the panels of one after those of another; only the epilogue asks whose one is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.gemm.tile import Tile, block_rows
from tilegraph.codegen.generated import Generated, Packed
from tilegraph.codegen.tir_math import V, typed
from tilegraph.ops.gemm import GemmSpace, Product
from tilegraph.ops.space import insts
from tilegraph.spec.dims import Dim

CHUNK = 384  # steps of k that are summed by themselves: the rounding error grows with the length of a sum
_CHAINS = 12  # sums in flight: two fused multiply-adds a cycle take at least 8
_STREAM = 4  # rows whose multiplications take as long as reading the panel from memory does
_LINE = 16  # elements of a cache line
_NEAR = 2048  # elements: how far ahead a panel that is read only once is asked for
_GROUPS = 16  # groups of a block where their number is symbolic: 128 rows
_MAX_STEPS = 8
_EXACT = 4  # groups up to which their shares are exactly the next panel


@dataclass(frozen=True)
class Ahead:
    """What a group of rows asks for while it multiplies: `lines` cache lines of the next panel every `steps` steps of
    k, from the element `start` after its own; without `start`, what it will read itself `_NEAR` elements later.

    The panel comes from memory at a third of the speed at which 8 rows are multiplied with it, and a block of 128 rows
    leaves the memory idle most of the time.
    """

    steps: int
    lines: int
    start: t.Expr = None


@dataclass(frozen=True)
class _Target:
    """Result `number`, with `space`, is made of the panels from `first` on; those from `begin` to `end` hold `columns`
    columns of it each."""

    number: int
    space: GemmSpace
    first: int
    begin: int
    end: int
    columns: int


class ProductKernel:
    def __init__(self, space: GemmSpace, vector_bits: int) -> None:
        self.space = space
        self.tile = Tile.of(space, vector_bits)
        if space.schedule.vectors is not None:
            self.tile = replace(self.tile, vectors=space.schedule.vectors)
        self.e = Emitter()
        self.parts = len(space.matrices)
        self.targets: list[_Target] = []  # of several results those that code is emitted for
        self.unit: t.Expr = None  # then the number of the panel
        self.depth = space.depth  # steps of k
        self.dtype = "float32"  # of what a step reads
        self.left_stored, self.summed = "float", "float32"

    def run(self, name: str) -> Generated:
        e, space, tile = self.e, self.space, self.tile
        self.left = e.input(space.left_slot, self.left_stored)
        self.open()
        panels = sum(-(-one.n // tile.panel) for one in space.members)
        self.block = space.schedule.rows or block_rows(panels)
        blocks = space.m.ceildiv(self.block)
        with e.loop("u", t.Sub(e.end, e.begin), e.begin) as u:
            p = e.share(t.Rem(u, e.i64(panels)))
            first = e.share(t.Mul(t.Div(u, e.i64(panels)), e.i64(self.block)))
            rows = e.share(t.Min(t.Sub(e.dim(space.m), first), e.i64(self.block)))
            self.start(u, p, first, rows)
            if space.beside:
                self._units(p, first, rows)
            elif panels * tile.panel == space.n:
                self._unit(p, first, rows, tile.panel)
            elif panels == 1:
                self._unit(p, first, rows, space.n)
            else:
                with e.block() as whole:
                    self._unit(p, first, rows, tile.panel)
                with e.block() as last:
                    self._unit(p, first, rows, space.n - (panels - 1) * tile.panel)
                e.stmts.append(t.IfThenElse(t.LT(p, e.i64(panels - 1)), t.sequence(whole), t.sequence(last)))
        work = (Dim.min(space.m, self.block) + _STREAM) * (self.depth * tile.vectors * self.parts)
        grain = Dim.of(TASK_COST).ceildiv(Dim.max(work, 1))
        return self.finish(name, [], extent=blocks * panels, scratch=Dim.of(0), grain=grain)

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        return self.e.finish(name, memory, extent=extent, align=1, scratch=scratch, grain=grain, packed=self.packed)

    @property
    def packed(self) -> tuple[Packed, ...]:
        space, panel = self.space, self.tile.panel
        behind = tuple((one.right_slot, one.transposed) for one in space.beside)
        return tuple(Packed(m.slot, panel, m.transposed, space.precision, behind) for m in space.matrices)

    # -- a block of rows times a panel ------------------------------------------------------------------------
    def _units(self, p: t.Expr, first: t.Expr, rows: t.Expr) -> None:
        """A unit of one of several results: code for each number of vectors that a panel may hold."""
        e, lanes = self.e, self.tile.lanes
        self.unit = p
        found: dict[int, list[_Target]] = {}
        begin = 0
        for number, space in enumerate(self.space.members):
            whole, rest = divmod(space.n, self.tile.panel)
            for start, count, width in ((begin, whole, self.tile.panel), (begin + whole, 1, rest)):
                if count and width:
                    one = _Target(number, space, begin, start, start + count, width)
                    found.setdefault(-(-width // lanes), []).append(one)
            begin += whole + (rest > 0)
        for vectors, self.targets in found.items():
            with e.when(functools.reduce(t.Or, (self._holds(p, one) for one in self.targets))):
                self._unit(p, first, rows, vectors * lanes)

    def _holds(self, p: t.Expr, target: _Target) -> t.Expr:
        return t.And(t.LE(self.e.i64(target.begin), p), t.LT(p, self.e.i64(target.end)))

    def _unit(self, p: t.Expr, first: t.Expr, rows: t.Expr, columns: int) -> None:
        """`columns`: how many of the panel's columns exist; vectors without any are left out."""
        e, size = self.e, self.tile.rows
        self.vectors = -(-columns // self.tile.lanes)
        column = e.share(t.Mul(p, e.i64(self.tile.panel)))
        base = self.base(column)
        static, near = self.space.m.as_int(), self.near()
        if static is None or static >= size:
            self._whole(first, t.Div(rows, e.i64(size)), base, column, columns)
        if static is not None:
            # What is left of the rows, at once: the panel is read once more, not once for each half.
            rest = static % size
            if rest:
                with e.when(t.NE(t.Rem(rows, e.i64(size)), e.i64(0))):
                    self._group(e.share(t.Add(first, t.Sub(rows, e.i64(rest)))), rest, base, column, columns, near)
            return
        # A symbolic rest: one of these, not its halves, each of which would read the panel.
        rest = e.share(t.Rem(rows, e.i64(size)))
        done = e.share(t.Add(first, t.Sub(rows, rest)))
        for left in range(1, size):
            with e.when(t.EQ(rest, e.i64(left))):
                self._group(done, left, base, column, columns, near)

    def _whole(self, first: t.Expr, groups: t.Expr, base: t.Expr, column: t.Expr, columns: int) -> None:
        """`groups` groups of rows from `first`."""
        e, size = self.e, self.tile.rows
        with e.loop("g", groups) as g:
            ahead = self._share(g) or self.near()
            self._group(e.share(t.Add(first, t.Mul(g, e.i64(size)))), size, base, column, columns, ahead)

    def _share(self, group: t.Expr) -> Ahead | None:
        """The share of the next panel that group number `group` asks for; none where there is one group."""
        return self.shared(group, self.depth, self.depth)

    def shared(self, group: t.Expr, depth: int, distance: int) -> Ahead | None:
        """Its share of `depth` steps of k, which lie `distance` steps behind those that it multiplies."""
        e, static = self.e, self.space.m.as_int()
        groups = _GROUPS if static is None else min(static, self.block) // self.tile.rows
        panel = -(-self.tile.panel // _LINE)
        if groups < 2:
            return None
        steps, lines = max(1, min(_MAX_STEPS, groups // panel)), -(-panel // groups)
        if groups <= _EXACT:
            steps, lines = groups // math.gcd(groups, panel), panel // math.gcd(groups, panel)
        first = t.Mul(group, e.i64(depth // steps * lines * _LINE))
        return Ahead(steps, lines, e.share(t.Add(e.i64(distance * self.tile.panel), first)))

    def _group(self, row: t.Expr, rows: int, base: t.Expr, column: t.Expr, columns: int, ahead: Ahead) -> None:
        """`rows` rows from `row`: the product, then the epilogue row by row."""
        e, tile = self.e, self.tile
        starts = self.left_rows(row, rows)
        size = rows * self.vectors * tile.lanes
        made = e.local("made", self.summed, self.parts * size)
        depth = self.depth
        if depth > CHUNK:
            for k in range(0, self.parts * size, tile.lanes):
                e.write(made, k, e.math.const(0, self.summed), tile.lanes)
        for part in self.each_part():
            at = e.i64(part * size) if part else None
            if depth <= CHUNK:
                self._sum(made, starts, base, e.i64(0), depth, False, ahead, at)
            else:
                self.chunks(made, starts, base, depth, ahead, at)
        self._results(made, row, rows, column, columns)

    def chunks(self, made: t.Buffer, starts: list[t.Expr], base: t.Expr, depth: int, ahead: Ahead,
                at: t.Expr | None = None) -> None:
        """`depth` steps of k join the sums of `made`, which begin at `at`."""
        e = self.e
        if depth >= CHUNK:
            with e.loop("c", depth // CHUNK) as c:
                self._sum(made, starts, base, e.share(t.Mul(c, e.i64(CHUNK))), CHUNK, True, ahead, at)
        if depth % CHUNK:
            self._sum(made, starts, base, e.i64(depth - depth % CHUNK), depth % CHUNK, True, ahead, at)

    def _results(self, made: t.Buffer, row: t.Expr, rows: int, column: t.Expr, columns: int,
                 at: t.Expr | None = None) -> None:
        """What is stored of the products `made`, which begin at `at`, row by row."""
        e = self.e
        self.apart = rows * self.vectors * self.tile.lanes
        for number, space, first, count in self._targets(column, columns):
            with e.loop("r", rows) as r:
                self.row = e.share(t.Add(row, r))
                e.set_loops(space.rows, self.row)
                line = t.Mul(r, e.i64(self.vectors * self.tile.lanes))
                line = e.share(line if at is None else t.Add(at, line))
                for start, lanes in _pieces(count, self.tile.lanes):
                    place = t.Add(line, e.i64(start))
                    self._epilogue(number, space, made, place, e.share(t.Add(first, e.i64(start))), lanes)

    def _targets(self, column: t.Expr, columns: int) -> Iterator[tuple[int, GemmSpace, t.Expr, int]]:
        """While emitting: whose a panel is, as the number of the result, its space, and the panel's first column and
        number of columns there."""
        if not self.space.beside:
            yield 0, self.space, column, columns
            return
        e = self.e
        for one in self.targets:
            with e.when(self._holds(self.unit, one)):
                yield one.number, one.space, e.share(t.Sub(column, e.i64(one.first * self.tile.panel))), one.columns

    def _sum(self, made: t.Buffer, starts: list[t.Expr], base: t.Expr, first: t.Expr, depth: int, add: bool,
             ahead: Ahead, at: t.Expr | None = None) -> None:
        """`depth` steps of k from `first`, in registers; the sums replace or join those of `made` that begin at `at`.

        Few rows have several sums for each element, so that a multiplication need not wait for the one before it.
        """
        e, lanes = self.e, self.tile.lanes
        places = [k * lanes for k in range(len(starts) * self.vectors)]
        chains = [e.local(f"acc{c}", self.summed, len(places) * lanes) for c in range(max(1, _CHAINS // len(places)))]
        for sums in chains:
            for place in places:
                e.write(sums, place, e.math.const(0, self.summed), lanes)
        steps = max(len(chains), ahead.steps)
        asked, stride = t.Add(base, e.i64(_NEAR)), steps * self.tile.panel
        if ahead.start is not None:
            asked, stride = t.Add(base, ahead.start), ahead.lines * _LINE
        # Counted from 0 with bases of its own, which LLVM unrolls.
        asked = e.share(t.Add(asked, t.Mul(t.Div(first, e.i64(steps)), e.i64(stride))))
        starts = [e.share(t.Add(start, first)) for start in starts]
        base = e.share(t.Add(base, t.Mul(first, e.i64(self.tile.panel))))
        with e.loop("k", depth // steps) as k:
            for line in range(ahead.lines * steps // ahead.steps):
                place = t.Add(t.Mul(k, e.i64(stride)), e.i64(line * _LINE))
                e.stmts.append(t.prefetch(self.right, t.Add(asked, place)))
            for c in range(steps):
                step = t.Add(t.Mul(k, e.i64(steps)), e.i64(c)) if steps > 1 else k
                self._step(chains[c % len(chains)], starts, base, step)
        for c in range(depth % steps):
            self._step(chains[c % len(chains)], starts, base, e.i64(depth - depth % steps + c))
        for place in places:
            value = added(e, [e.read(sums, self.summed, place, lanes) for sums in chains])
            into = e.i64(place) if at is None else t.Add(at, e.i64(place))
            if add:
                value = e.math.add(value, e.read(made, self.summed, into, lanes))
            e.write(made, into, value, lanes)

    def _step(self, sums: t.Buffer, starts: list[t.Expr], base: t.Expr, k: t.Expr) -> None:
        """Step `k` for every element of the group."""
        e, tile = self.e, self.tile
        lanes = tile.lanes
        right = self.columns(t.Add(base, t.Mul(k, e.i64(tile.panel))))
        for r, start in enumerate(starts):
            left = e.math.widen(e.read(self.left, self.dtype, t.Add(start, k)), lanes)
            for v in range(self.vectors):
                place = (r * self.vectors + v) * lanes
                call = self.multiply(left, right[v].expr, e.read(sums, self.summed, place, lanes).expr)
                e.write(sums, place, V(call, self.summed, lanes), lanes)

    # -- the matrix -----------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Names the matrices; `right` is the one that is multiplied with."""
        self.rights = [self.e.input(m.slot, self.dtype) for m in self.space.matrices]
        self.right = self.rights[0]

    def each_part(self) -> Iterator[int]:
        """The numbers of the matrices; while one is out, it is the one that is multiplied with."""
        for part, right in enumerate(self.rights):
            self.right = right
            yield part

    def base(self, column: t.Expr) -> t.Expr:
        """Where the panel that begins with `column` lies."""
        return self.e.share(t.Mul(column, self.e.i64(self.depth)))

    def near(self) -> Ahead:
        """What a group asks for that reads its panel alone."""
        return Ahead(1, -(-self.tile.panel // _LINE))

    def columns(self, at: t.Expr) -> list[V]:
        """The vectors of the matrix that lie at `at`."""
        e, lanes = self.e, self.tile.lanes
        return [e.math.share(e.read(self.right, self.dtype, t.Add(at, e.i64(v * lanes)), lanes))
                for v in range(self.vectors)]

    # -- the left operand -----------------------------------------------------------------------------------------
    def start(self, unit: t.Expr, panel: t.Expr, first: t.Expr, rows: t.Expr) -> None:
        """Before a unit of the block of `rows` rows from `first`."""

    def multiply(self, left: t.Expr, right: t.Expr, sums: t.Expr) -> t.Expr:
        """`sums` and the product of one step, vectors all."""
        return t.intrinsic(typed("float32", self.tile.lanes), "llvm.fma", left, right, sums)

    def product(self, sums: V, column: t.Expr) -> V:
        """The product in row `self.row` from `column` on, of what was summed."""
        return sums

    def left_rows(self, row: t.Expr, rows: int) -> list[t.Expr]:
        """Where each row of the left operand starts."""
        e, space = self.e, self.space
        e.loops[space.k] = e.i64(0)
        if len(space.rows) < 2 and not space.left.hidden():
            e.set_loops(space.rows, row)
            start = e.share(e.index(space.left))
            step = e.dim(space.left.coef(space.rows[0])) if space.rows else e.i64(0)
            return [t.Add(start, t.Mul(step, e.i64(r))) if r else start for r in range(rows)]
        starts = []
        for r in range(rows):
            e.set_loops(space.rows, t.Add(row, e.i64(r)))
            starts.append(e.share(e.index(space.left)))
        return starts

    def _epilogue(self, number: int, space: GemmSpace, made: t.Buffer, place: t.Expr, column: t.Expr,
                  width: int) -> None:
        e = self.e
        e.set_loops(space.cols, column)
        known = {}
        for leaf in (inst for inst in insts(space.value) if isinstance(inst, Product)):
            at = t.Add(place, e.i64(leaf.number * self.apart)) if leaf.number else place
            known[id(leaf)] = self.product(e.math.share(e.read(made, self.summed, at, width)), column)
        value = e.value(space.value, space.cols[-1], width, known)
        e.write(e.output(number, space.stored), e.index(space.address), value, width)


def added(e: Emitter, values: list[V]) -> V:
    """Their sum, in pairs."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [e.math.add(a, b) for a, b in pairs] + (values[-1:] if len(values) % 2 else [])
    return values[0]


def _pieces(columns: int, lanes: int) -> list[tuple[int, int]]:
    """(first, lanes) of the vectors of a panel that holds `columns` columns; nothing reaches past them."""
    found: list[tuple[int, int]] = []
    done = 0
    while done < columns:
        while lanes > columns - done:
            lanes //= 2
        found.append((done, lanes))
        done += lanes
    return found
