"""One TIR function for any `AttentionSpace`: online softmax over blocks of keys.

For each batch and head the keys are packed, transposed, into panels of a few vectors; for each block of queries the
kernel then walks over the blocks of keys: products into a scratch block (8 rows x 2 vectors in registers), modifier and
running row maximum, exponentials and row sums, and the product with the values in registers. This is the schedule of
FlashAttention-2 (Dao 2023) for vectors on a CPU. Blocks that the modifier hides are passed over, see `bounds`.

A block is passed over while its scores have an upper bound that is low. At the end each row's maximum shows whether
every exponential that was left out is 0 in float32; where one is not, the block of queries is computed again, whole.
With that, and a check that keys, queries and values are finite, the result is the one of the whole score matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.bounds import Block, Bounds, Interval, can_skip, conditions
from tilegraph.codegen.attention.caches import append
from tilegraph.codegen.attention.few import Rows, dot_scores
from tilegraph.codegen.attention.flat import flat_block
from tilegraph.codegen.attention.odd import ORDINARY, Odd, few_skips
from tilegraph.codegen.attention.operands import Operands, fit, keys_of
from tilegraph.codegen.attention.pieces import leave
from tilegraph.codegen.attention.products import Tile, scores, times_values
from tilegraph.codegen.attention.rows import softmax_block, without_keys
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows.values import pack
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import FEW, AttentionSpace
from tilegraph.ops.space import Inst
from tilegraph.spec.dims import Dim

_LOW = -1000.0  # a bound below which a block is left out at first
_GONE = 104.0  # exp(-104) is 0 in float32
_SHARE_PACKING = 4  # blocks of queries that should share one packing of the keys

Place = tuple[t.Expr, t.Expr, t.Expr, t.Expr, t.Expr]  # a block: first query, rows, row groups, first key, columns


def generate(space: AttentionSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    return _Kernel(space, vector_bits).run(name)


@dataclass(frozen=True)
class _Scratch:
    """Offsets in float32 elements."""

    queries: int
    scores: int
    sums: int
    peak: int
    total: int
    keys: int


class _Kernel:
    def __init__(self, space: AttentionSpace, vector_bits: int) -> None:
        self.space = space
        self.tile = Tile.choose(space, vector_bits // 32, can_skip(space))
        self.e = Emitter()
        self.memory = self.e.flat("scratch_f32", "float32")
        tile = self.tile
        queries = 0
        block = queries + tile.rows * tile.depth_pitch
        sums = block + tile.rows * tile.pitch
        peak = sums + tile.rows * tile.width_pitch
        self.at = _Scratch(queries, block, sums, peak, peak + tile.rows, peak + 2 * tile.rows)
        self.skips = can_skip(space)

    def run(self, name: str) -> Generated:
        e, space, tile = self.e, self.space, self.tile
        self.result = e.output(0, space.stored)
        self.operands = Operands(e, space, tile, self.memory, self.at.queries, self.at.keys, self.skips)
        blocks = space.i.extent.ceildiv(tile.rows)
        few = space.has_few
        if space.caches and few is not False:  # they are made even if there is no query
            blocks = Dim.max(blocks, 1)
        if few is None:
            with e.block() as small:
                self._few()
            with e.block() as large:
                self._many(blocks)
            e.stmts.append(t.IfThenElse(t.LT(e.dim(space.i.extent), e.i64(FEW)), t.sequence(small), t.sequence(large)))
        elif few:
            self._few()
        else:
            self._many(blocks)
        rows = Dim.of(tile.rows) if few is False else Dim.min(space.i.extent, tile.rows)
        work = (rows * space.j.extent * (space.depth + space.width)).ceildiv(tile.lanes)
        grain = Dim.of(TASK_COST).ceildiv(Dim.max(work, 1))
        keys = Dim.of(0) if few else space.j.extent.ceildiv(tile.panel) * (tile.panel * space.depth)
        align = 1 if few is False or space.pieces > 1 else Rows(e, space).heads
        return e.finish(name, [self.memory], extent=Dim.product(v.extent for v in space.batch) * blocks, align=align,
                        scratch=(keys + self.at.keys) * 4, grain=grain if few else Dim.max(grain, _SHARE_PACKING))

    def _many(self, blocks: Dim) -> None:
        """Blocks of queries, one after the other; keys are packed for each batch and head."""
        e, space = self.e, self.space
        count = e.share(e.dim(blocks))
        first = e.share(t.Div(e.begin, count))
        last = t.Div(t.Sub(e.end, e.i64(1)), count)
        with e.loop("o", t.Add(t.Sub(last, first), e.i64(1)), first) as o:
            e.set_loops(space.batch, o)
            self.keys = keys_of(e, space)
            self.operands.start()
            self.operands.pack()
            base = e.share(t.Mul(o, count))
            low = e.share(t.Max(t.Sub(e.begin, base), e.i64(0)))
            high = t.Min(t.Sub(e.end, base), count)
            with e.loop("b", t.Sub(high, low), low) as b:
                self._queries(b)

    def _few(self) -> None:
        """All queries of a batch and of heads that share their keys at a time, see `few`."""
        e, space, tile = self.e, self.space, self.tile
        where = Rows(e, space)
        known = space.i.extent.as_int()
        chunk = min(max(tile.rows // (known or FEW - 1), 1), where.heads)  # heads at a time
        where.most = chunk * (known or FEW - 1)
        where.least = (where.heads % chunk or chunk) * (known or 1)
        cut = space.pieces
        units = cut if cut > 1 else where.heads  # of a group
        first = e.share(t.Div(e.begin, e.i64(units)))
        last = t.Div(t.Add(e.end, e.i64(units - 1)), e.i64(units))
        with e.loop("o", t.Sub(last, first), first) as o:
            e.set_loops(space.batch[:len(space.batch) - len(space.sharing)], o)
            self.keys = keys_of(e, space)
            blocks = e.share(t.Div(t.Add(self.keys, e.i64(tile.columns - 1)), e.i64(tile.columns)))
            low, high = e.i64(0), blocks
            if cut > 1:
                base = t.Mul(o, e.i64(cut))
                pieces = (e.share(t.Max(t.Sub(e.begin, base), e.i64(0))),
                          e.share(t.Min(t.Sub(e.end, base), e.i64(cut))))
                each = e.share(t.Div(t.Add(blocks, e.i64(cut - 1)), e.i64(cut)))
                low, high = (e.share(t.Min(t.Mul(p, each), blocks)) for p in pieces)
            with e.loop("h", -(-where.heads // chunk)) as h:
                where.first = e.share(t.Mul(h, e.i64(chunk)))
                heads = t.Min(t.Sub(e.i64(where.heads), where.first), e.i64(chunk))
                rows = e.share(t.Mul(heads, e.dim(space.i.extent)))
                self.operands.copy_queries(where.put, rows, False)
                if few_skips(space):
                    self._few_attempts(where, rows, (low, high))
                else:
                    self._start(rows, where.put)
                    with e.loop("k", t.Sub(high, low), low) as kb:
                        self._few_keys(where, rows, e.share(t.Mul(kb, e.i64(tile.columns))))
                if cut > 1:
                    leave(e, space, tile, self.memory, (self.at.peak, self.at.total, self.at.sums), where, o, pieces,
                          rows)
                else:
                    self._store(where.put, rows)

    def _few_attempts(self, where: Rows, rows: t.Expr, blocks: tuple[t.Expr, t.Expr]) -> None:
        """Blocks of keys in which no query sees any are only looked through for what is not finite; if the maxima or
        such a value show that they matter, all keys are taken."""
        e, m, space, tile = self.e, self.e.math, self.space, self.tile
        low, high = blocks
        again = e.scalar("again", "int64", V(e.i64(1), "int64"))
        with e.loop("attempt", 2) as attempt, e.when(t.EQ(e.read(again, "int64", 0).expr, e.i64(1))):
            e.write(again, 0, V(e.i64(0), "int64"))
            self.left_out = e.scalar("left_out", "float32", e.f32(float("-inf")))
            odd = Odd(e, space, tile)
            odd.queries(self.memory, self.at.queries, rows)
            self._start(rows, where.put)
            with e.loop("k", t.Sub(high, low), low) as kb:
                j0 = e.share(t.Mul(kb, e.i64(tile.columns)))
                columns = e.share(t.Min(t.Sub(self.keys, j0), e.i64(tile.columns)))
                queries = e.dim(space.i.extent)
                block = Block((e.i64(0), t.Sub(queries, e.i64(1))), (j0, t.Sub(t.Add(j0, columns), e.i64(1))), queries,
                              columns)
                found = Bounds(e, space, block, Interval(e.f32(-ORDINARY), e.f32(ORDINARY)), tile.lanes).of(space.x)
                with e.block() as out:
                    self._note_left_out(found.high if found is not None else e.f32(0.0))
                    self._append(where, j0, columns)
                    odd.keys(j0, columns)
                with e.block() as body:
                    self._few_keys(where, rows, j0)
                if found is None:
                    e.stmts.extend(body)
                else:
                    hidden = m.land(m.lt(found.high, e.f32(_LOW)), V(t.EQ(attempt, e.i64(0)), "bool"))
                    e.stmts.append(t.IfThenElse(hidden.expr, t.sequence(out), t.sequence(body)))
            self._verdict(rows, again)
            with e.when(m.lnot(m.eq(odd.sum(), e.f32(0.0))).expr):
                e.write(again, 0, V(e.i64(1), "int64"))

    def _note_left_out(self, bound: V) -> None:
        e, m = self.e, self.e.math
        before = m.share(e.read(self.left_out, "float32", 0))
        e.write(self.left_out, 0, m.select(m.lt(before, bound), bound, before))

    def _append(self, where: Rows, first: t.Expr, count: t.Expr) -> None:
        if self.space.caches:
            with self.e.when(t.EQ(where.first, self.e.i64(0))):
                append(self.e, self.space, self.tile.lanes, first, count)

    def _few_keys(self, where: Rows, rows: t.Expr, j0: t.Expr) -> None:
        e, space, tile, at = self.e, self.space, self.tile, self.at
        columns = e.share(t.Min(t.Sub(self.keys, j0), e.i64(tile.columns)))
        dot_scores(e, space, tile, self.memory, at.queries, at.scores, rows, j0, columns, partial(self._append, where))
        softmax_block(e, space, tile, self.memory, (at.scores, at.peak, at.total, at.sums), where.put, rows, j0,
                      columns, {})
        self._few_values(where, rows, j0, columns)

    def _few_values(self, where: Rows, rows: t.Expr, j0: t.Expr, columns: t.Expr) -> None:
        """One row by itself has too few sums to keep the units busy: more keys are taken at a time."""
        e, tile = self.e, self.tile

        def take(group: int, keys: int) -> None:
            times_values(e, self.space, tile, self.memory, self.at.scores, self.at.sums, rows, j0, columns,
                         (group, keys))

        if where.most == 1:
            take(1, 4)
            return
        with e.block() as general:
            take(min(where.most, tile.sum_rows), 1)
        if where.least > 1:
            e.stmts.append(t.sequence(general))
            return
        with e.block() as single:
            take(1, 4)
        e.stmts.append(t.IfThenElse(t.EQ(rows, e.i64(1)), t.sequence(single), t.sequence(general)))

    # -- one block of queries ---------------------------------------------------------------------------------
    def _queries(self, b: t.Expr) -> None:
        e, space, tile = self.e, self.space, self.tile
        i0 = e.share(t.Mul(b, e.i64(tile.rows)))
        rows = e.share(t.Min(t.Sub(e.dim(space.i.extent), i0), e.i64(tile.rows)))
        put = self._place(i0)
        self.operands.copy_queries(put, rows, self.skips)
        if not self.skips:
            self._start(rows, put)
            self._walk(i0, rows, None)
        else:
            bound = self.operands.score_bound()
            again = e.scalar("again", "int64", V(e.i64(1), "int64"))
            with e.loop("attempt", 2) as attempt, e.when(t.EQ(e.read(again, "int64", 0).expr, e.i64(1))):
                e.write(again, 0, V(e.i64(0), "int64"))
                self.left_out = e.scalar("left_out", "float32", e.f32(float("-inf")))
                self._start(rows, put)
                self._walk(i0, rows, (bound, t.EQ(attempt, e.i64(0))))
                self._verdict(rows, again)
        self._store(put, rows)

    def _place(self, i0: t.Expr) -> Callable[[t.Expr], None]:
        """What sets the loops of row r of the block that begins with query i0."""
        def put(r: t.Expr) -> None:
            self.e.loops[self.space.i] = t.Add(i0, r)

        return put

    def _start(self, rows: t.Expr, put: Callable[[t.Expr], None]) -> None:
        """Nothing is summed yet but the sink, if there is one: 1, relative to itself as the greatest score."""
        e, m, tile, sink = self.e, self.e.math, self.tile, self.space.sink
        with e.loop("r", rows) as r:
            peak, total = e.f32(float("-inf")), e.f32(0.0)
            if sink is not None:
                put(r)
                score = m.share(e.value(sink, self.space.j, 1, {}))
                own = m.share(m.sub(score, score))  # NaN for an infinite one, or NaN
                total = m.select(m.eq(score, peak), total, m.add(own, e.f32(1.0)))
                peak = m.select(m.eq(own, e.f32(0.0)), score, peak)
            e.write(self.memory, t.Add(r, e.i64(self.at.peak)), peak)
            e.write(self.memory, t.Add(r, e.i64(self.at.total)), total)
        with e.loop("r", tile.rows * tile.width_pitch // tile.lanes) as r:
            at = t.Add(t.Mul(r, e.i64(tile.lanes)), e.i64(self.at.sums))
            e.write(self.memory, at, e.f32(0.0), tile.lanes)

    def _walk(self, i0: t.Expr, rows: t.Expr, skip: tuple[V, t.Expr] | None) -> None:
        e, tile = self.e, self.tile
        groups = e.share(t.Div(t.Add(rows, e.i64(tile.group - 1)), e.i64(tile.group)))
        with e.loop("k", t.Div(t.Add(self.keys, e.i64(tile.columns - 1)), e.i64(tile.columns))) as kb:
            j0 = e.share(t.Mul(kb, e.i64(tile.columns)))
            columns = e.share(t.Min(t.Sub(self.keys, j0), e.i64(tile.columns)))
            at = (i0, rows, groups, j0, columns)
            if skip is None:
                self._block(*at, {})
            else:
                self._bounded_block(at, *skip)

    def _bounded_block(self, at: Place, bound: V, first_attempt: t.Expr) -> None:
        """The block, unless its scores have a low bound at the first attempt."""
        e, m, space = self.e, self.e.math, self.space
        i0, rows, _, j0, columns = at
        one = e.i64(1)
        block = Block((i0, t.Sub(t.Add(i0, rows), one)), (j0, t.Sub(t.Add(j0, columns), one)), rows, columns)
        found = Bounds(e, space, block, Interval(m.neg(bound), bound), self.tile.lanes)
        whole = found.of(space.x)
        if whole is None:
            self._decided(found, at)
            return
        clean = m.eq(bound, bound)
        low = m.land(m.land(m.lt(whole.high, e.f32(_LOW)), clean), V(first_attempt, "bool"))
        with e.block() as out:
            self._note_left_out(whole.high)
        with e.block() as body:
            self._decided(found, at)
        with e.block() as flat:
            offsets = (self.at.scores, self.at.peak, self.at.total, self.at.sums)
            flat_block(e, space, self.tile, self.memory, offsets, rows, j0, columns, whole.low)
        # Equal ends that are finite: a score of infinity or NaN has no weight that is the same for all.
        even = m.land(m.land(m.eq(whole.low, whole.high), m.lt(m.abs(whole.low), e.f32(float("inf")))), clean)
        kept = t.IfThenElse(even.expr, t.sequence(flat), t.sequence(body))
        e.stmts.append(t.IfThenElse(low.expr, t.sequence(out), kept))

    def _decided(self, found: Bounds, at: Place) -> None:
        """The block, without its predicates where they hold for all of it."""
        e, m = self.e, self.e.math
        full: V | None = None
        known: dict[int, V] = {}
        for condition in conditions(self.space):
            interval = found.of(condition)
            if interval is not None:
                full = interval.low if full is None else m.land(full, interval.low)
                known[id(condition)] = V(t.int_imm("bool", 1), "bool")
        if full is None:
            self._block(*at, {})
            return
        self._scores(at)
        with e.block() as plain:
            self._soft(at, known)
        with e.block() as general:
            self._soft(at, {})
        e.stmts.append(t.IfThenElse(full.expr, t.sequence(plain), t.sequence(general)))
        self._values(at)

    def _block(self, i0: t.Expr, rows: t.Expr, groups: t.Expr, j0: t.Expr, columns: t.Expr,
               known: dict[int, V]) -> None:
        at = (i0, rows, groups, j0, columns)
        self._scores(at)
        self._soft(at, known)
        self._values(at)

    def _scores(self, at: Place) -> None:
        _, _, groups, j0, columns = at
        scores(self.e, self.space, self.tile, self.memory, self.at.queries, self.at.keys, self.at.scores, groups, j0,
               columns)

    def _values(self, at: Place) -> None:
        _, _, groups, j0, columns = at
        e, tile = self.e, self.tile
        times_values(e, self.space, tile, self.memory, self.at.scores, self.at.sums, t.Mul(groups, e.i64(tile.group)),
                     j0, columns, (tile.sum_rows, 1))

    def _soft(self, at: Place, known: dict[int, V]) -> None:
        i0, rows, _, j0, columns = at
        offsets = (self.at.scores, self.at.peak, self.at.total, self.at.sums)
        softmax_block(self.e, self.space, self.tile, self.memory, offsets, self._place(i0), rows, j0, columns, known)

    def _verdict(self, rows: t.Expr, again: t.Buffer) -> None:
        """Whether what was left out is 0 for every row; a row whose bound was -inf needs no maximum."""
        e, m = self.e, self.e.math
        gone = m.share(e.read(self.left_out, "float32", 0))
        with e.when(m.lnot(m.eq(gone, e.f32(float("-inf")))).expr), e.loop("r", rows) as r:
            peak = e.read(self.memory, "float32", t.Add(r, e.i64(self.at.peak)))
            certain = m.lt(e.f32(_GONE), m.sub(peak, gone))
            with e.when(m.lnot(certain).expr):
                e.write(again, 0, V(e.i64(1), "int64"))

    def _store(self, put: Callable[[t.Expr], None], rows: t.Expr) -> None:
        e, m, space, tile = self.e, self.e.math, self.space, self.tile
        with e.loop("r", rows) as r:
            put(r)
            total = m.share(e.read(self.memory, "float32", t.Add(r, e.i64(self.at.total))))
            inverse = without_keys(e, space, m.share(m.div(e.f32(1.0), total)))
            row = e.share(t.Add(t.Mul(r, e.i64(tile.width_pitch)), e.i64(self.at.sums)))
            if space.guarded:
                with e.when(m.lnot(m.lt(e.f32(0.0), total)).expr):
                    self._nothing(row)
                inverse = m.select(m.lt(e.f32(0.0), total), inverse, e.f32(1.0))
            if space.hides is not None:
                hidden = self._hidden(space.hides, total)
                with e.when(hidden.expr):
                    self._nothing(row)
                inverse = m.select(hidden, e.f32(1.0), inverse)
            done = 0
            while done < space.width:
                width = fit(space.width - done, tile.lanes)
                e.loops[space.e] = e.i64(done)
                value = m.mul(e.read(self.memory, "float32", t.Add(row, e.i64(done)), width), inverse)
                e.write(self.result, e.index(space.address), pack(m, m.share(value), space.stored), width)
                done += width

    def _hidden(self, term: Inst, total: V) -> V:
        """Whether `term` is minus infinity for all keys of the row: only looked at where no weight is above 0."""
        e, m = self.e, self.e.math
        hidden = e.scalar("hidden", "int64", V(e.i64(0), "int64"))
        with e.when(m.lnot(m.lt(e.f32(0.0), total)).expr):
            e.write(hidden, 0, V(e.i64(1), "int64"))
            with e.loop("c", e.dim(self.space.j.extent)) as c:
                e.loops[self.space.j] = c
                value = e.value(term, self.space.j, 1, {})
                with e.when(m.lnot(m.eq(value, e.f32(float("-inf")))).expr):
                    e.write(hidden, 0, V(e.i64(0), "int64"))
        return m.share(m.eq(e.read(hidden, "int64", 0), V(e.i64(1), "int64")))

    def _nothing(self, row: t.Expr) -> None:
        """Weights that all became 0: the sum of 0 * value, which is NaN where a value is not finite."""
        e, m, space = self.e, self.e.math, self.space
        done = 0
        while done < space.width:
            width = fit(space.width - done, self.tile.lanes)
            e.loops[space.e] = e.i64(done)
            at = t.Add(row, e.i64(done))
            e.write(self.memory, at, e.f32(0.0), width)
            with e.loop("c", e.dim(space.j.extent)) as c:
                e.loops[space.j] = c
                value = e.value(space.v, space.e, width, {})
                e.write(self.memory, at, m.fma(value, e.f32(0.0), e.read(self.memory, "float32", at, width)), width)
            done += width
