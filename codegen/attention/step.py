"""The kernel of a few queries, as in a decoder's step: heads that share keys go through them together, see `few`."""

from __future__ import annotations

from functools import partial

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.bounds import LOW, Block, Bounds, Interval
from tilegraph.codegen.attention.caches import append
from tilegraph.codegen.attention.ends import Ends
from tilegraph.codegen.attention.few import Rows, dot_scores
from tilegraph.codegen.attention.odd import ORDINARY, Odd, few_skips
from tilegraph.codegen.attention.operands import Operands, keys_of
from tilegraph.codegen.attention.pieces import leave
from tilegraph.codegen.attention.products import times_values
from tilegraph.codegen.attention.rows import softmax_block
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import FEW


class Step:
    """Emits the loops over batches and key heads, keys and queries."""

    def __init__(self, ends: Ends, operands: Operands) -> None:
        self.e, self.space, self.tile = ends.e, ends.space, ends.tile
        self.memory, self.at = ends.memory, ends.at
        self.ends, self.operands = ends, operands

    def run(self) -> None:
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
            self.first: t.Expr | None = None
            if cut > 1:
                base = t.Mul(o, e.i64(cut))
                pieces = (e.share(t.Max(t.Sub(e.begin, base), e.i64(0))),
                          e.share(t.Min(t.Sub(e.end, base), e.i64(cut))))
                each = e.share(t.Div(t.Add(blocks, e.i64(cut - 1)), e.i64(cut)))
                low, high = (e.share(t.Min(t.Mul(p, each), blocks)) for p in pieces)
                self.first = t.EQ(pieces[0], e.i64(0))
            with e.loop("h", -(-where.heads // chunk)) as h:
                where.first = e.share(t.Mul(h, e.i64(chunk)))
                heads = t.Min(t.Sub(e.i64(where.heads), where.first), e.i64(chunk))
                rows = e.share(t.Mul(heads, e.dim(space.i.extent)))
                self.operands.copy_queries(where.put, rows, False)
                if few_skips(space):
                    self._attempts(where, rows, (low, high))
                else:
                    self.ends.start(rows, where.put, self.first)
                    with e.loop("k", t.Sub(high, low), low) as kb:
                        self._keys(where, rows, e.share(t.Mul(kb, e.i64(tile.columns))))
                if cut > 1:
                    leave(e, space, tile, self.memory, (self.at.peak, self.at.total, self.at.sums), where, o, pieces,
                          rows)
                else:
                    self.ends.store(where.put, rows)

    def _attempts(self, where: Rows, rows: t.Expr, blocks: tuple[t.Expr, t.Expr]) -> None:
        """Blocks of keys in which no query sees any are looked through for what is not finite, or if that is known,
        passed over; if the maxima or such a value show that they matter, all keys are taken."""
        e, m, space, tile = self.e, self.e.math, self.space, self.tile
        low, high = blocks
        again = e.scalar("again", "int64", V(e.i64(1), "int64"))
        with e.loop("attempt", 2) as attempt, e.when(t.EQ(e.read(again, "int64", 0).expr, e.i64(1))):
            e.write(again, 0, V(e.i64(0), "int64"))
            self.ends.attempt()
            odd = None if space.trusts else Odd(e, space, tile)
            if odd is not None:
                odd.queries(self.memory, self.at.queries, rows)
            self.ends.start(rows, where.put, self.first)
            with e.loop("k", t.Sub(high, low), low) as kb:
                j0 = e.share(t.Mul(kb, e.i64(tile.columns)))
                columns = e.share(t.Min(t.Sub(self.keys, j0), e.i64(tile.columns)))
                queries = e.dim(space.i.extent)
                block = Block((e.i64(0), t.Sub(queries, e.i64(1))), (j0, t.Sub(t.Add(j0, columns), e.i64(1))), queries,
                              columns)
                found = Bounds(e, space, block, Interval(e.f32(-ORDINARY), e.f32(ORDINARY)), tile.lanes).of(space.x)
                with e.block() as out:
                    self.ends.leave_out(found.high if found is not None else e.f32(0.0))
                    self._append(where, j0, columns)
                    if odd is not None:
                        odd.keys(j0, columns)
                with e.block() as body:
                    self._keys(where, rows, j0)
                if found is None:
                    e.stmts.extend(body)
                else:
                    hidden = m.land(m.lt(found.high, e.f32(LOW)), V(t.EQ(attempt, e.i64(0)), "bool"))
                    e.stmts.append(t.IfThenElse(hidden.expr, t.sequence(out), t.sequence(body)))
            self.ends.verdict(rows, again)
            if odd is not None:
                with e.when(m.lnot(m.eq(odd.sum(), e.f32(0.0))).expr):
                    e.write(again, 0, V(e.i64(1), "int64"))

    def _append(self, where: Rows, first: t.Expr, count: t.Expr) -> None:
        if self.space.caches:
            with self.e.when(t.EQ(where.first, self.e.i64(0))):
                append(self.e, self.space, self.tile.lanes, first, count)

    def _keys(self, where: Rows, rows: t.Expr, j0: t.Expr) -> None:
        e, space, tile, at = self.e, self.space, self.tile, self.at
        columns = e.share(t.Min(t.Sub(self.keys, j0), e.i64(tile.columns)))
        dot_scores(e, space, tile, self.memory, at.queries, at.scores, rows, j0, columns, partial(self._append, where))
        softmax_block(e, space, tile, self.memory, at.block, where.put, rows, j0,
                      columns, {})
        self._values(where, rows, j0, columns)

    def _values(self, where: Rows, rows: t.Expr, j0: t.Expr, columns: t.Expr) -> None:
        """One row by itself has too few sums to keep the units busy: more keys are taken at a time."""
        e, tile = self.e, self.tile

        def take(group: int, keys: int) -> None:
            times_values(e, self.space, tile, self.memory, self.at.block, rows, j0, columns, (group, keys))

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
