"""The kernel of many queries: for each batch and head the keys are packed, then blocks of queries walk over them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention import tables
from tilegraph.codegen.attention.bounds import LOW, Block, Bounds, Interval, can_skip, conditions
from tilegraph.codegen.attention.ends import Ends
from tilegraph.codegen.attention.flat import flat_block
from tilegraph.codegen.attention.operands import Operands, keys_of
from tilegraph.codegen.attention.products import scores, times_values
from tilegraph.codegen.attention.rows import softmax_block
from tilegraph.codegen.tir_math import V
from tilegraph.spec.dims import Dim

Place = tuple[t.Expr, t.Expr, t.Expr, t.Expr, t.Expr]  # a block: first query, rows, row groups, first key, columns


class Blocks:
    """Emits the loops over batches and heads, blocks of queries, and blocks of keys."""

    def __init__(self, ends: Ends, operands: Operands) -> None:
        self.e, self.space, self.tile = ends.e, ends.space, ends.tile
        self.memory, self.at = ends.memory, ends.at
        self.ends, self.operands = ends, operands
        self.skips = can_skip(ends.space)

    def run(self, blocks: Dim) -> None:
        """Blocks of queries, one after the other; keys are packed once for heads that share them."""
        e, space = self.e, self.space
        count = e.share(e.dim(blocks))
        first = e.share(t.Div(e.begin, count))
        last = t.Div(t.Sub(e.end, e.i64(1)), count)
        self.operands.declare()
        with e.loop("o", t.Add(t.Sub(last, first), e.i64(1)), first) as o:
            e.set_loops(space.batch, o)
            self.keys = keys_of(e, space)
            leads = [t.EQ(e.loops[v], e.i64(0)) for v in space.sharing]
            with e.when(t.Or(t.EQ(o, first), reduce(t.And, leads)) if leads else t.int_imm("bool", 1)):
                self.operands.start()
                self.operands.pack()
            base = e.share(t.Mul(o, count))
            low = e.share(t.Max(t.Sub(e.begin, base), e.i64(0)))
            high = t.Min(t.Sub(e.end, base), count)
            with e.loop("b", t.Sub(high, low), low) as b:
                self._queries(b)

    def _queries(self, b: t.Expr) -> None:
        e, space, tile = self.e, self.space, self.tile
        i0 = e.share(t.Mul(b, e.i64(tile.rows)))
        rows = e.share(t.Min(t.Sub(e.dim(space.i.extent), i0), e.i64(tile.rows)))
        put = self._place(i0)
        self.operands.copy_queries(put, rows, self.skips)
        if not self.skips:
            self.ends.start(rows, put)
            self._walk(i0, rows, None)
        else:
            bound = self.operands.score_bound()
            again = e.scalar("again", "int64", V(e.i64(1), "int64"))
            with e.loop("attempt", 2) as attempt, e.when(t.EQ(e.read(again, "int64", 0).expr, e.i64(1))):
                e.write(again, 0, V(e.i64(0), "int64"))
                self.ends.attempt()
                self.ends.start(rows, put)
                self._walk(i0, rows, (bound, t.EQ(attempt, e.i64(0))))
                self.ends.verdict(rows, again)
        self.ends.store(put, rows)

    def _place(self, i0: t.Expr) -> Callable[[t.Expr], None]:
        """What sets the loops of row r of the block that begins with query i0."""
        def put(r: t.Expr) -> None:
            self.e.loops[self.space.i] = t.Add(i0, r)

        return put

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
        found.learn(tables.known(e, space, self.tile, i0, j0))
        whole = found.of(space.x)
        if whole is None:
            self._decided(found, at)
            return
        clean = m.eq(bound, bound)
        low = m.land(m.land(m.lt(whole.high, e.f32(LOW)), clean), V(first_attempt, "bool"))
        with e.block() as out:
            self.ends.leave_out(whole.high)
        with e.block() as body:
            self._decided(found, at)
        with e.block() as flat:
            offsets = self.at.block
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
        for condition, shows in conditions(self.space):
            interval = found.of(condition)
            if interval is not None:
                certain = interval.low if shows else m.lnot(interval.high)
                full = certain if full is None else m.land(full, certain)
                known[id(condition)] = V(t.int_imm("bool", int(shows)), "bool")
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
        times_values(e, self.space, tile, self.memory, self.at.block, t.Mul(groups, e.i64(tile.group)), j0, columns,
                     (tile.sum_rows, 1))

    def _soft(self, at: Place, known: dict[int, V]) -> None:
        i0, rows, _, j0, columns = at
        offsets = self.at.block
        softmax_block(self.e, self.space, self.tile, self.memory, offsets, self._place(i0), rows, j0, columns, known)
