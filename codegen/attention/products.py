"""The two matrix products of a block, with their accumulators in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import STORAGE, Emitter
from tilegraph.codegen.tir_math import V, typed
from tilegraph.ops.attention import MASKED_BLOCK, AttentionSpace
from tilegraph.ops.space import Load


@dataclass(frozen=True)
class Tile:
    """Sizes of the blocks, in elements; pitches are the distances of rows in scratch.

    A block of scores is `rows` x `columns`. Scores are made `group` rows by `panel` keys at a time, outputs
    `sum_rows` rows at a time. Pitches are no powers of two, which would put rows on the same cache sets.
    """

    lanes: int
    rows: int
    columns: int
    group: int
    panel: int
    sum_rows: int
    pitch: int
    depth_pitch: int
    width_pitch: int

    @staticmethod
    def choose(space: AttentionSpace, lanes: int, masked: bool) -> Tile:
        group, sum_rows, vectors = (8, 4, 2) if lanes >= 16 else (4, 2, 2)
        panel = vectors * lanes
        # Without a mask long rows save work on each row; with one, square blocks leave out more.
        rows, columns = MASKED_BLOCK if masked else (32, 128)
        rows, columns = space.schedule.rows or rows, space.schedule.columns or columns
        known, keys = space.i.extent.as_int(), space.j.extent.as_int()
        if known is not None:
            if space.has_few:
                known *= math.prod(v.extent.value for v in space.sharing)
            rows = min(rows, -(-known // group) * group)
        if keys is not None:
            columns = min(columns, -(-keys // panel) * panel)
        columns = max(columns // panel, 1) * panel

        def padded(size: int) -> int:
            return -(-size // 16) * 16 + 16

        return Tile(lanes, rows, columns, group, panel, sum_rows, padded(columns), padded(space.depth),
                    padded(space.width))


@dataclass(frozen=True)
class Sums:
    """Offsets of what a block of keys changes, in float32 elements: scores, and of every row the maximum, the sum of
    exponentials, what sums so far are to be multiplied by, and the weighted values."""

    scores: int
    peak: int
    total: int
    shrink: int
    values: int


def fma(e: Emitter, a: V, b: V, c: V) -> V:
    lanes = c.lanes
    m = e.math
    return V(t.intrinsic(typed("float32", lanes), "llvm.fma", m.widen(a, lanes), m.widen(b, lanes), c.expr), "float32",
             lanes)


def scores(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, queries: int, keys: int, block: int,
           groups: t.Expr, j0: t.Expr, columns: t.Expr) -> None:
    """block[r, c] = sum_d queries[r, d] * keys[j0 + c, d] for all groups of rows and the panels that hold `columns`."""
    lanes, vectors = tile.lanes, tile.panel // tile.lanes
    panels = t.Div(t.Add(columns, e.i64(tile.panel - 1)), e.i64(tile.panel))
    with e.loop("p", panels) as p:
        packed = e.share(t.Add(t.Mul(t.Add(t.Div(j0, e.i64(tile.panel)), p), e.i64(tile.panel * space.depth)),
                               e.i64(keys)))
        with e.loop("g", groups) as g:
            top = e.share(t.Add(t.Mul(g, e.i64(tile.group * tile.depth_pitch)), e.i64(queries)))
            sums = e.local("acc", "float32", tile.group * tile.panel)
            for k in range(tile.group * vectors):
                e.write(sums, k * lanes, e.f32(0.0), lanes)
            with e.loop("d", space.depth) as d:
                at = t.Add(packed, t.Mul(d, e.i64(tile.panel)))
                right = [e.math.share(e.read(memory, "float32", t.Add(at, e.i64(v * lanes)), lanes))
                         for v in range(vectors)]
                for r in range(tile.group):
                    left = e.read(memory, "float32", t.Add(top, t.Add(d, e.i64(r * tile.depth_pitch))))
                    for v in range(vectors):
                        place = (r * vectors + v) * lanes
                        e.write(sums, place, fma(e, left, right[v], e.read(sums, "float32", place, lanes)), lanes)
            corner = e.share(t.Add(t.Add(t.Mul(g, e.i64(tile.group * tile.pitch)), t.Mul(p, e.i64(tile.panel))),
                                   e.i64(block)))
            for r in range(tile.group):
                for v in range(vectors):
                    value = e.read(sums, "float32", (r * vectors + v) * lanes, lanes)
                    e.write(memory, t.Add(corner, e.i64(r * tile.pitch + v * lanes)), value, lanes)


def times_values(e: Emitter, space: AttentionSpace, tile: Tile, memory: t.Buffer, at: Sums, rows: t.Expr, j0: t.Expr,
                 columns: t.Expr, at_once: tuple[int, int]) -> None:
    """out[r, :] = out[r, :] * shrink[r] + sum_c scores[r, c] * values[j0 + c, :] for `rows` rows, and some more up to a
    whole group.

    `at_once`: rows of a group, and keys whose products are summed apart, so that one sum need not wait for the other.
    """
    v = space.v
    assert isinstance(v, Load)
    group, keys = at_once
    values, stored = e.input(v.slot, v.stored), STORAGE.get(v.stored, v.stored)
    with e.loop("g", t.Div(t.Add(rows, e.i64(group - 1)), e.i64(group))) as g:
        weights = e.share(t.Add(t.Mul(g, e.i64(group * tile.pitch)), e.i64(at.scores)))
        top = e.share(t.Add(t.Mul(g, e.i64(group * tile.width_pitch)), e.i64(at.values)))
        first_row = e.share(t.Add(t.Mul(g, e.i64(group)), e.i64(at.shrink)))
        for chunk in chunks(space.width, tile.lanes):
            places = [(r, first, width) for r in range(group) for first, width in chunk]
            sums = [[e.local("acc", "float32", width) for _, _, width in places] for _ in range(keys)]
            for part in sums:
                for (_, _, width), acc in zip(places, part, strict=True):  # from 0: long running sums lose digits
                    e.write(acc, 0, e.f32(0.0), width)

            def take(c: t.Expr, part: list[t.Buffer], chunk: list[tuple[int, int]] = chunk, weights: t.Expr = weights,
                     places: list[tuple[int, int, int]] = places) -> None:
                e.loops[space.j] = t.Add(j0, c)
                right = {}
                for first, width in chunk:
                    e.loops[space.e] = e.i64(first)
                    raw = e.read(values, stored, e.index(v.address), width)
                    right[first] = e.math.share(e.unpack(raw, v.stored, v.dtype))
                for (r, first, width), acc in zip(places, part, strict=True):
                    left = e.read(memory, "float32", t.Add(weights, t.Add(c, e.i64(r * tile.pitch))))
                    e.write(acc, 0, fma(e, left, right[first], e.read(acc, "float32", 0, width)), width)

            done: t.Expr = e.i64(0)
            if keys > 1:
                whole = e.share(t.Div(columns, e.i64(keys)))
                done = e.share(t.Mul(whole, e.i64(keys)))
                with e.loop("c", whole) as c:
                    for k, part in enumerate(sums):
                        take(t.Add(t.Mul(c, e.i64(keys)), e.i64(k)), part)
            with e.loop("c", t.Sub(columns, done), done) as c:
                take(c, sums[0])
            for n, (r, first, width) in enumerate(places):
                place = t.Add(top, e.i64(r * tile.width_pitch + first))
                total = reduce(e.math.add, [e.read(part[n], "float32", 0, width) for part in sums])
                shrink = e.read(memory, "float32", t.Add(first_row, e.i64(r)))
                e.write(memory, place, fma(e, shrink, e.read(memory, "float32", place, width), total), width)


def chunks(width: int, lanes: int) -> list[list[tuple[int, int]]]:
    """(first, lanes) of the vectors of a row of values, up to four of them at a time."""
    vectors: list[tuple[int, int]] = []
    done = 0
    while done < width:
        size = lanes
        while size > width - done:
            size //= 2
        vectors.append((done, size))
        done += size
    return [vectors[k:k + 4] for k in range(0, len(vectors), 4)]
