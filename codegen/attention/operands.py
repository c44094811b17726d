"""Keys, values and queries of an attention kernel: packing, and what is known of their sizes."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.products import Tile
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.index import Var
from tilegraph.ops.space import Inst, Load, insts
from tilegraph.spec.dims import Dim


class Operands:
    """Emits the packing at offsets `queries` and `keys` of `memory`. `bounded`: also what `score_bound` needs."""

    def __init__(self, emitter: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, queries: int, keys: int,
                 bounded: bool) -> None:
        self.e = emitter
        self.space = space
        self.tile = tile
        self.memory = memory
        self.queries = queries
        self.keys = keys
        self.skips = bounded

    def pack(self) -> None:
        """Keys as [panel][d][key in the panel], the last panel filled up with zeros, and their greatest size."""
        e, space, tile = self.e, self.space, self.tile
        lanes = along(space.k, space.d, tile.lanes, space.depth)
        across = along(space.k, space.j, tile.lanes, tile.panel) if lanes == 1 else 1
        keys = keys_of(e, space)
        panels = e.share(t.Div(t.Add(keys, e.i64(tile.panel - 1)), e.i64(tile.panel)))
        with e.loop("p", panels) as p:
            base = e.share(t.Mul(p, e.i64(tile.panel)))
            present = e.share(t.Min(t.Sub(keys, base), e.i64(tile.panel)))
            panel = e.share(t.Add(t.Mul(p, e.i64(tile.panel * space.depth)), e.i64(self.keys)))
            with e.when(t.LT(present, e.i64(tile.panel))), e.loop("z", tile.panel * space.depth) as z:
                e.write(self.memory, t.Add(panel, z), e.f32(0.0))
            if across > 1:
                self._pack_columns(panel, base, present, across)
            elif lanes == tile.lanes:
                with e.block() as fast:
                    self._pack_tiles(panel, base)
                with e.block() as slow:
                    self._pack_rows(panel, base, present, lanes, 0)
                e.stmts.append(t.IfThenElse(t.EQ(present, e.i64(tile.panel)), t.sequence(fast), t.sequence(slow)))
            else:
                self._pack_rows(panel, base, present, lanes, 0)

    def _pack_rows(self, panel: t.Expr, base: t.Expr, present: t.Expr, lanes: int, first: int) -> None:
        """Key by key, from d = first."""
        e, space = self.e, self.space
        with e.loop("r", present) as r:
            e.loops[space.j] = t.Add(base, r)
            whole = (space.depth - first) // lanes
            with e.loop("c", whole) as c:
                self._pack_piece(panel, r, t.Add(e.i64(first), t.Mul(c, e.i64(lanes))), lanes)
            done = first + whole * lanes
            while done < space.depth:
                width = fit(space.depth - done, lanes)
                self._pack_piece(panel, r, e.i64(done), width)
                done += width

    def _pack_tiles(self, panel: t.Expr, base: t.Expr) -> None:
        """A full panel, transposed in registers: as many keys as a vector has lanes at a time."""
        e, space, tile = self.e, self.space, self.tile
        lanes = tile.lanes
        whole = space.depth // lanes
        with e.loop("h", tile.panel // lanes) as h, e.loop("c", whole) as c:
            rows = []
            for k in range(lanes):
                e.loops[space.j] = t.Add(base, t.Add(t.Mul(h, e.i64(lanes)), e.i64(k)))
                e.loops[space.d] = t.Mul(c, e.i64(lanes))
                rows.append(e.math.share(e.value(space.k, space.d, lanes, {})))
                self._note(rows[-1])
            corner = e.share(t.Add(panel, t.Add(t.Mul(c, e.i64(lanes * tile.panel)), t.Mul(h, e.i64(lanes)))))
            for k, row in enumerate(self._transposed(rows)):
                e.write(self.memory, t.Add(corner, e.i64(k * tile.panel)), row, lanes)
        if whole * lanes < space.depth:
            self._pack_rows(panel, base, e.i64(tile.panel), lanes, whole * lanes)

    def _transposed(self, rows: list[V]) -> list[V]:
        """A square of vectors, by exchanging ever smaller squares beside the diagonal."""
        lanes, m = len(rows), self.e.math
        step = lanes // 2
        while step:
            upper = [k if not k & step else lanes + k - step for k in range(lanes)]
            lower = [k + step if not k & step else lanes + k for k in range(lanes)]
            made = list(rows)
            for k in range(lanes):
                if not k & step:
                    pair = [rows[k].expr, rows[k + step].expr]
                    for at, order in ((k, upper), (k + step, lower)):
                        mixed = t.Shuffle(pair, [t.int_imm("int32", o) for o in order])
                        made[at] = m.share(V(mixed, "float32", lanes))
            rows, step = made, step // 2
        return rows

    def _pack_piece(self, panel: t.Expr, r: t.Expr, first: t.Expr, lanes: int) -> None:
        """`lanes` elements of one key, from d = first."""
        e, space, tile = self.e, self.space, self.tile
        e.loops[space.d] = first
        value = e.value(space.k, space.d, lanes, {})
        self._note(value)
        if lanes == 1:
            e.write(self.memory, t.Add(panel, t.Add(t.Mul(first, e.i64(tile.panel)), r)), value)
            return
        row = e.local("row", "float32", lanes)
        e.write(row, 0, value, lanes)
        for k in range(lanes):
            at = t.Mul(t.Add(first, e.i64(k)), e.i64(tile.panel))
            e.write(self.memory, t.Add(panel, t.Add(at, r)), e.read(row, "float32", k))

    def _pack_columns(self, panel: t.Expr, base: t.Expr, present: t.Expr, lanes: int) -> None:
        """Keys that lie transposed in memory: whole vectors of keys, then single ones."""
        e, space, tile = self.e, self.space, self.tile
        whole = e.share(t.Div(present, e.i64(lanes)))
        done = e.share(t.Mul(whole, e.i64(lanes)))
        with e.loop("d", space.depth) as d:
            e.loops[space.d] = d
            row = e.share(t.Add(panel, t.Mul(d, e.i64(tile.panel))))
            for start, count, width in ((e.i64(0), whole, lanes), (done, t.Sub(present, done), 1)):
                with e.loop("c", count) as c:
                    at = t.Add(start, t.Mul(c, e.i64(width)))
                    e.loops[space.j] = t.Add(base, at)
                    value = e.value(space.k, space.j, width, {})
                    self._note(value)
                    e.write(self.memory, t.Add(row, at), value, width)

    def declare(self) -> None:
        """Makes the variables of what is known of keys and values."""
        if self.skips:
            self.greatest, self.values = (self.e.local(n, "int32", self.tile.lanes) for n in ("greatest", "values"))

    def start(self) -> None:
        """Starts the bounds of one batch and head, with the greatest size of its values."""
        if not self.skips:
            return
        e, space, lanes = self.e, self.space, self.tile.lanes
        for sizes in (self.greatest, self.values):
            e.write(sizes, 0, e.math.const(0, "int32"), lanes)
        v = space.v
        assert isinstance(v, Load)
        with e.loop("r", keys_of(e, space)) as r:
            e.loops[space.j] = r
            done = 0
            while done < space.width:
                width = fit(space.width - done, lanes)
                e.loops[space.e] = e.i64(done)
                self._enlarge(self.values, e.value(v, space.e, width, {}))
                done += width

    def _note(self, value: V) -> None:
        if self.skips:
            self._enlarge(self.greatest, value)

    def _enlarge(self, sizes: t.Buffer, value: V) -> None:
        """Takes |value| into the maximum, lane by lane. As integers, where NaN is above infinity."""
        e, m = self.e, self.e.math
        size = m.band(m.bitcast(value, "int32"), m.const(0x7FFFFFFF, "int32"))
        e.write(sizes, 0, m.maximum(e.read(sizes, "int32", 0, value.lanes), size), value.lanes)

    def _greatest(self, sizes: t.Buffer) -> V:
        """The greatest of all lanes, a float again; NaN if there was one."""
        m = self.e.math
        most = m.folded(m.share(self.e.read(sizes, "int32", 0, self.tile.lanes)), m.maximum)
        return m.share(m.bitcast(m.share(most), "float32"))

    def copy_queries(self, put: Callable[[t.Expr], None], rows: t.Expr, bounded: bool) -> None:
        """The block's queries side by side; rows that are only there to fill a group are 0.

        `put` sets the loops of a row. `bounded`: also what `score_bound` needs.
        """
        e, space, tile = self.e, self.space, self.tile
        if bounded:
            self.asked = e.local("asked", "int32", tile.lanes)
            e.write(self.asked, 0, e.math.const(0, "int32"), tile.lanes)
        lanes = along(space.q, space.d, tile.lanes, space.depth)
        filled = t.Mul(t.Div(t.Add(rows, e.i64(tile.group - 1)), e.i64(tile.group)), e.i64(tile.group))
        pitch = e.i64(tile.depth_pitch)
        with e.loop("z", t.Mul(t.Sub(filled, rows), pitch), t.Mul(rows, pitch)) as z:
            e.write(self.memory, t.Add(z, e.i64(self.queries)), e.f32(0.0))
        with e.loop("r", rows) as r:
            put(r)
            row = e.share(t.Add(t.Mul(r, e.i64(tile.depth_pitch)), e.i64(self.queries)))
            done = 0
            while done < space.depth:
                width = fit(space.depth - done, lanes)
                e.loops[space.d] = e.i64(done)
                value = e.math.share(e.value(space.q, space.d, width, {}))
                e.write(self.memory, t.Add(row, e.i64(done)), value, width)
                if bounded:
                    self._enlarge(self.asked, value)
                done += width

    def score_bound(self) -> V:
        """A bound on the size of every score of the block; NaN if a key, query or value is not finite."""
        e, m = self.e, self.e.math
        keys, queries, values = (self._greatest(sizes) for sizes in (self.greatest, self.asked, self.values))
        product = m.mul(m.mul(keys, queries), e.f32(1.01 * self.space.depth))
        product = m.fma(values, e.f32(0.0), product)
        return m.fma(product, e.f32(0.0), product)  # NaN where the bound overflowed


def keys_of(e: Emitter, space: AttentionSpace) -> t.Expr:
    """How many keys the current batch has."""
    extent = e.dim(space.j.extent)
    if space.length is None:
        return extent
    return e.share(t.Max(t.Min(e.value(space.length, space.j, 1, {}).expr, extent), e.i64(0)))


def fit(left: int, lanes: int) -> int:
    """The widest power of two that fits."""
    while lanes > left:
        lanes //= 2
    return lanes


def along(inst: Inst, var: Var, lanes: int, extent: int) -> int:
    """How many lanes `inst` is evaluated in along `var`: as many as there are, or 1 if an operand is not contiguous."""
    for one in insts(inst):
        if isinstance(one, Load) and one.address.coef(var) not in (Dim.of(0), Dim.of(1)):
            return 1
    return fit(extent, lanes)
