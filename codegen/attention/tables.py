"""What blocks of masks hold that several heads share: the kernel that finds it once a run, and how it is read.

Each head would scan the same mask, which is often larger than the caches: at 2048 positions and a density of 0.12 the
scans took a fifth of the time.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.bounds import Block, Bounds, Interval
from tilegraph.codegen.attention.products import Tile
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.attention import FEW, MASKED_BLOCK, TABLE, AttentionSpace
from tilegraph.ops.space import Load
from tilegraph.spec.dims import Dim


def generate(space: AttentionSpace, name: str, vector_bits: int) -> Generated:
    """Emits the function `name` that fills the table of `space`: one unit of work is a row of blocks."""
    e = Emitter()
    tile = Tile.choose(space, vector_bits // 32, True)
    out = e.output(1 + len(space.caches) + (space.pieces > 1), "float")
    rows, columns = _blocks(e, space, tile)
    batch = space.table_batch
    with e.block() as body, e.loop("o", t.Sub(e.end, e.begin), e.begin) as o:
        e.set_loops(batch, e.share(t.Div(o, rows)))
        i0 = e.share(t.Mul(t.Rem(o, rows), e.i64(tile.rows)))
        count = e.share(t.Min(t.Sub(e.dim(space.i.extent), i0), e.i64(tile.rows)))
        with e.loop("k", columns) as kb:
            j0 = e.share(t.Mul(kb, e.i64(tile.columns)))
            keys = e.share(t.Min(t.Sub(e.dim(space.j.extent), j0), e.i64(tile.columns)))
            last = t.Sub(t.Add(i0, count), e.i64(1)), t.Sub(t.Add(j0, keys), e.i64(1))
            nothing = Interval(e.f32(0.0), e.f32(0.0))  # of scores, which no mask in memory asks for
            found = Bounds(e, space, Block((i0, last[0]), (j0, last[1]), count, keys), nothing, tile.lanes)
            place = e.share(t.Mul(t.Add(t.Mul(o, columns), kb), e.i64(2 * len(space.tables))))
            for n, load in enumerate(space.tables):
                interval = found.of(load)
                assert interval is not None
                for k, end in enumerate((interval.low, interval.high)):
                    e.write(out, t.Add(place, e.i64(2 * n + k)), e.math.cast(end, "float32"))
    # Few queries have another way, which asks for no table.
    many = t.LE(e.i64(FEW if space.has_few is None else 0), e.dim(space.i.extent))
    e.stmts.append(t.IfThenElse(many, t.sequence(body), None))
    size = Dim.product(v.extent for v in batch) * space.i.extent.ceildiv(tile.rows)
    work = (space.j.extent * (tile.rows * len(space.tables))).ceildiv(tile.lanes)
    return e.finish(name, [], extent=size, align=1, scratch=Dim.of(0),
                    grain=Dim.of(TASK_COST).ceildiv(Dim.max(work, 1)))


def known(e: Emitter, space: AttentionSpace, tile: Tile, i0: t.Expr, j0: t.Expr) -> dict[Load, Interval]:
    """What the table says of the block that begins with query `i0` and key `j0` of the current batch and head."""
    if not space.tables:
        return {}
    table, m = e.input(TABLE, "float"), e.math
    rows, columns = _blocks(e, space, tile)
    place: t.Expr = e.i64(0)
    for var in space.table_batch:
        place = t.Add(t.Mul(place, e.dim(var.extent)), e.loops[var])
    place = t.Add(t.Mul(place, rows), t.Div(i0, e.i64(tile.rows)))
    place = t.Add(t.Mul(place, columns), t.Div(j0, e.i64(tile.columns)))
    place = e.share(t.Mul(place, e.i64(2 * len(space.tables))))

    def end(k: int, load: Load) -> V:
        value = e.read(table, "float32", t.Add(place, e.i64(k)))
        return m.share(m.ne(value, e.f32(0.0)) if load.dtype == "bool" else value)

    return {load: Interval(end(2 * n, load), end(2 * n + 1, load)) for n, load in enumerate(space.tables)}


def _blocks(e: Emitter, space: AttentionSpace, tile: Tile) -> tuple[t.Expr, t.Expr]:
    """How many blocks of queries and of keys there are."""
    rows, columns = space.schedule.rows or MASKED_BLOCK[0], space.schedule.columns or MASKED_BLOCK[1]
    sizes = [(space.i.extent, tile.rows, rows), (space.j.extent, tile.columns, columns)]
    # As many as `AttentionSpace.table` reserves; a tile is smaller only where there is one block.
    assert all(one == usual or (extent.as_int() is not None and extent.value <= one) for extent, one, usual in sizes)
    return e.share(e.dim(space.i.extent.ceildiv(tile.rows))), e.share(e.dim(space.j.extent.ceildiv(tile.columns)))
