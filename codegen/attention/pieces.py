"""Few queries on keys that tasks have cut into pieces: what a piece leaves, and the kernel that adds pieces up.

Each piece is a softmax by itself: its row maxima, sums of exponentials and weighted values. Pieces are joined as blocks
of keys are: relative to the greatest of their maxima (FlashDecoding, Dao et al. 2023). A task that has several pieces
makes one of them, and leaves the others empty.
"""

from __future__ import annotations

import math

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.attention.few import Rows
from tilegraph.codegen.attention.operands import fit
from tilegraph.codegen.attention.products import Tile
from tilegraph.codegen.attention.rows import exp_falling, without_keys
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.rows.values import pack
from tilegraph.ops.attention import FEW, PARTIAL, PIECE_HEAD, AttentionSpace
from tilegraph.spec.dims import Dim

_EMPTY = -1.0  # instead of a sum; even a piece of hidden keys has one, which may be NaN


def leave(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, at: tuple[int, int, int], where: Rows,
          group: t.Expr, pieces: tuple[t.Expr, t.Expr], rows: t.Expr) -> None:
    """Writes `rows` rows as piece `pieces[0]` of a group of heads, and makes the pieces up to `pieces[1]` empty.

    `at`: offsets of maxima, sums and weighted values in `memory`.
    """
    peaks, totals, outputs = at
    first, last = pieces
    lanes = min(tile.lanes, PIECE_HEAD)
    out = e.output(1 + len(space.caches), "float")
    before = e.share(t.Mul(where.first, e.dim(space.i.extent)))
    with e.loop("r", rows) as r:
        place = e.share(_place(e, space, group, first, t.Add(before, r)))
        e.write(out, place, e.read(memory, "float32", t.Add(r, e.i64(peaks))))
        e.write(out, t.Add(place, e.i64(1)), e.read(memory, "float32", t.Add(r, e.i64(totals))))
        row = e.share(t.Add(t.Mul(r, e.i64(tile.width_pitch)), e.i64(outputs)))
        for k in range(0, space.width, lanes):
            value = e.read(memory, "float32", t.Add(row, e.i64(k)), lanes)
            e.write(out, t.Add(place, e.i64(PIECE_HEAD + k)), value, lanes)
        with e.loop("p", t.Sub(last, t.Add(first, e.i64(1))), t.Add(first, e.i64(1))) as p:
            empty = e.share(_place(e, space, group, p, t.Add(before, r)))
            e.write(out, empty, e.f32(float("-inf")))
            e.write(out, t.Add(empty, e.i64(1)), e.f32(_EMPTY))


def generate(space: AttentionSpace, name: str, vector_bits: int) -> Generated:
    """Emits the function `name` that reads what the pieces of `space` left and writes its result."""
    e = Emitter()
    lanes = min(vector_bits // 32, PIECE_HEAD)
    result, parts = e.output(0, space.stored), e.input(PARTIAL, "float")
    rows = Dim.product(v.extent for v in space.batch) * space.i.extent
    with e.block() as body, e.loop("r", t.Sub(e.end, e.begin), e.begin) as r:
        e.set_loops((*space.batch, space.i), r)
        _row(e, space, result, parts, r, lanes)
    if space.has_few is None:
        e.stmts.append(t.IfThenElse(t.LT(e.dim(space.i.extent), e.i64(FEW)), t.sequence(body), None))
    else:
        e.stmts.extend(body)
    return e.finish(name, [], extent=rows, align=1, scratch=Dim.of(0),
                    grain=Dim.of(max(TASK_COST // (space.pieces * (4 + space.width // lanes)), 1)))


def _place(e: Emitter, space: AttentionSpace, group: t.Expr, piece: t.Expr, row: t.Expr) -> t.Expr:
    """Where what a piece leaves for a row begins; `row`: of all heads of the group, the query fastest."""
    count = e.dim(space.i.extent * space.pieces)
    return t.Mul(t.Add(t.Mul(t.Add(t.Mul(group, e.i64(space.pieces)), piece), count), row), e.i64(space.piece_pitch))


def _row(e: Emitter, space: AttentionSpace, result: t.Buffer, parts: t.Buffer, r: t.Expr, lanes: int) -> None:
    m = e.math
    count = e.share(e.dim(space.i.extent * math.prod(v.extent.value for v in space.sharing)))
    group, row = e.share(t.Div(r, count)), e.share(t.Rem(r, count))
    low = e.f32(float("-inf"))
    peak = e.scalar("peak", "float32", low)
    with e.loop("p", space.pieces) as p:
        one = m.share(e.read(parts, "float32", _place(e, space, group, p, row)))
        before = m.share(e.read(peak, "float32", 0))
        e.write(peak, 0, m.select(m.lt(before, one), one, before))
    greatest = m.share(e.read(peak, "float32", 0))
    base = m.share(m.select(m.eq(greatest, low), e.f32(0.0), greatest))
    total = e.scalar("total", "float32", e.f32(0.0))
    vectors: list[tuple[int, int]] = []
    while sum(width for _, width in vectors) < space.width:
        done = sum(width for _, width in vectors)
        vectors.append((done, fit(space.width - done, lanes)))
    sums = [e.local("sum", "float32", width) for _, width in vectors]
    for (_, width), acc in zip(vectors, sums, strict=True):
        e.write(acc, 0, e.f32(0.0), width)
    with e.loop("p", space.pieces) as p:
        place = e.share(_place(e, space, group, p, row))
        of_piece = m.share(e.read(parts, "float32", t.Add(place, e.i64(1))))
        with e.when(m.lnot(m.eq(of_piece, e.f32(_EMPTY))).expr):
            factor = m.share(exp_falling(m, m.share(m.sub(e.read(parts, "float32", place), base))))
            e.write(total, 0, m.fma(of_piece, factor, e.read(total, "float32", 0)))
            for (first, width), acc in zip(vectors, sums, strict=True):
                value = e.read(parts, "float32", t.Add(place, e.i64(PIECE_HEAD + first)), width)
                e.write(acc, 0, m.fma(value, factor, e.read(acc, "float32", 0, width)), width)
    inverse = without_keys(e, space, m.share(m.div(e.f32(1.0), e.read(total, "float32", 0))))
    for (first, width), acc in zip(vectors, sums, strict=True):
        e.loops[space.e] = e.i64(first)
        value = m.share(m.mul(e.read(acc, "float32", 0, width), inverse))
        e.write(result, e.index(space.address), pack(m, value, space.stored), width)
