"""Joins of blocked values: channels one after the other, or sums, of parts that are repeated along rows and columns.

A unit of work is a row of the result. With upsampled parts, channels that straddle two blocks of the result are two
pieces, each loaded and stored by itself; every element of a smaller part is loaded once for all its neighbours in a
line. Without, each block of the result is shuffled from the blocks of the parts that its channels lie in.
"""

from __future__ import annotations

import math

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import TASK_COST, Emitter
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.conv.items import join_strides
from tilegraph.ops.conv.join import JoinSpace, Part
from tilegraph.ops.prims import Decline
from tilegraph.spec.dims import Dim


def generate(space: JoinSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name`. `Decline` for registers that do not hold a block."""
    if vector_bits // 32 != space.lanes:
        raise Decline(f"blocks of {space.lanes} channels, but vectors of {vector_bits // 32}")
    return _Join(space).generate(name)


_Block = dict[tuple[int, int], dict[int, int]]  # (part, block of it) -> lane of the result -> lane of that block


def _blocks(space: JoinSpace) -> list[_Block]:
    """Where each block of a concatenation comes from."""
    places = [(part, *divmod(c, space.lanes)) for part, p in enumerate(space.parts) for c in range(p.channels)]
    order = range(len(places)) if space.order is None else space.order
    found: list[_Block] = [{} for _ in range(space.blocks)]
    for to, channel in enumerate(order):
        part, block, lane = places[channel]
        found[to // space.lanes].setdefault((part, block), {})[to % space.lanes] = lane
    return found


def _shifted(block: _Block, by: int) -> _Block:
    return {(part, k + by): taken for (part, k), taken in block.items()}


class _Join:
    def __init__(self, space: JoinSpace) -> None:
        self.space = space
        self.e = Emitter()
        self.result = self.e.output(0, "float")
        even = space.kind == "concat" and all(p.down * p.across == 1 for p in space.parts)
        self.blocks = _blocks(space) if even else None
        if self.blocks is None and space.order is not None:
            raise Decline("channels of an upsampled value are chosen")

    def generate(self, name: str) -> Generated:
        e, space = self.e, self.space
        with e.loop("u", t.Sub(e.end, e.begin), e.begin) as u:
            self.n = e.share(t.Div(u, e.dim(space.rows)))
            self.y = e.share(t.Rem(u, e.dim(space.rows)))
            if space.kind == "sum":
                self._sum()
            elif self.blocks is None:
                self._concat()
            else:
                self._shuffled(self.blocks)
        work = space.columns * (space.blocks * len(space.parts) * 2)
        if self.blocks is not None:
            work = space.columns * (2 * sum(map(len, self.blocks)))
        grain = Dim.of(TASK_COST).ceildiv(Dim.max(work, 1))
        return e.finish(name, [], extent=space.n * space.rows, align=1, scratch=Dim.of(0), grain=grain,
                        equal=space.equal, items=join_strides(space))

    def _sum(self) -> None:
        e, space = self.e, self.space
        step = math.lcm(*(p.across for p in space.parts))
        with e.loop("b", space.blocks) as b:
            rows = [self._source(p, b) for p in space.parts]
            out = self._row(b)
            with e.loop("x", t.Div(e.dim(space.columns), e.i64(step))) as x:
                known: dict[tuple[int, int], V] = {}
                for k in range(step):
                    total: V | None = None
                    for which, (part, row) in enumerate(zip(space.parts, rows, strict=True)):
                        at = which, k // part.across
                        if at not in known:
                            place = t.Add(t.Mul(x, e.i64(step // part.across)), e.i64(at[1]))
                            place = t.Add(row, t.Mul(place, e.i64(space.lanes)))
                            known[at] = e.math.share(e.read(e.input(part.slot, "float"), "float32", place, space.lanes))
                        total = known[at] if total is None else e.math.add(total, known[at])
                    assert total is not None
                    e.write(self.result, self._at(out, t.Add(t.Mul(x, e.i64(step)), e.i64(k)), 0), total, space.lanes)

    def _concat(self) -> None:
        e, space = self.e, self.space
        lanes, first = space.lanes, 0
        for part in space.parts:
            for number in range(-(-part.channels // lanes)):
                source = self._source(part, e.i64(number))
                done, count = 0, min(lanes, part.channels - number * lanes)
                while done < count:
                    channel = first + number * lanes + done
                    size = min(count - done, lanes - channel % lanes)
                    self._piece(part, source, done, channel, size)
                    done += size
            first += part.channels
        if first % lanes:
            out = self._row(e.i64(first // lanes))
            with e.loop("x", e.dim(space.columns)) as x:
                e.write(self.result, self._at(out, x, first % lanes), e.f32(0.0), lanes - first % lanes)

    def _shuffled(self, blocks: list[_Block]) -> None:
        """Blocks that take the same lanes as the one before, each from the next block of the same part, are a loop."""
        e, lanes, first = self.e, self.space.lanes, 0
        while first < len(blocks):
            count = 1
            while first + count < len(blocks) and _shifted(blocks[first], count) == blocks[first + count]:
                count += 1
            with e.loop("b", count) as b:
                out = self._row(t.Add(e.i64(first), b))
                rows = [self._source(self.space.parts[part], t.Add(e.i64(block), b))
                        for (part, block) in blocks[first]]
                with e.loop("x", e.dim(self.space.columns)) as x:
                    step = t.Mul(x, e.i64(lanes))
                    found: V | None = None
                    for row, ((part, _), taken) in zip(rows, blocks[first].items(), strict=True):
                        buffer = e.input(self.space.parts[part].slot, "float")
                        one = e.math.share(e.read(buffer, "float32", t.Add(row, step), lanes))
                        found = self._mixed(found, one, taken)
                    assert found is not None
                    if (missing := self._empty(blocks[first])):
                        found = self._mixed(found, V(t.Broadcast(e.f32(0.0).expr, lanes), "float32", lanes),
                                            dict.fromkeys(missing, 0))
                    e.write(self.result, t.Add(out, step), found, lanes)
            first += count

    def _mixed(self, before: V | None, one: V, taken: dict[int, int]) -> V:
        """`before` with lanes of `one` at some places: lane of the result -> lane of `one`."""
        lanes = self.space.lanes
        order = [taken.get(k, k) for k in range(lanes)]
        values = [one.expr]
        if before is not None:
            order = [lanes + taken[k] if k in taken else k for k in range(lanes)]
            values = [before.expr, one.expr]
        elif order == list(range(lanes)):
            return one
        shuffled = t.Shuffle(values, [t.int_imm("int32", k) for k in order])
        return self.e.math.share(V(shuffled, "float32", lanes))

    def _empty(self, block: _Block) -> list[int]:
        """The lanes past the last channel."""
        full = {k for taken in block.values() for k in taken}
        return [k for k in range(self.space.lanes) if k not in full]

    def _piece(self, part: Part, source: t.Expr, lane: int, channel: int, size: int) -> None:
        """`size` channels from `lane` of a source block to `channel` of the result."""
        e, lanes = self.e, self.space.lanes
        out = self._row(e.i64(channel // lanes))
        with e.loop("x", e.dim(part.columns)) as x:
            place = t.Add(source, t.Add(t.Mul(x, e.i64(lanes)), e.i64(lane)))
            value = e.math.share(e.read(e.input(part.slot, "float"), "float32", place, size))
            for k in range(part.across):
                to = t.Add(t.Mul(x, e.i64(part.across)), e.i64(k))
                e.write(self.result, self._at(out, to, channel % lanes), value, size)

    def _source(self, part: Part, block: t.Expr) -> t.Expr:
        """The row of a block of `part` that row y of the result comes from."""
        e = self.e
        blocks = e.i64(-(-part.channels // self.space.lanes))
        row = t.Add(t.Mul(t.Add(t.Mul(self.n, blocks), block), e.dim(part.rows)), t.Div(self.y, e.i64(part.down)))
        return e.share(t.Mul(row, e.dim(part.columns * self.space.lanes)))

    def _row(self, block: t.Expr) -> t.Expr:
        e, space = self.e, self.space
        row = t.Add(t.Mul(t.Add(t.Mul(self.n, e.i64(space.blocks)), block), e.dim(space.rows)), self.y)
        return e.share(t.Mul(row, e.dim(space.columns * space.lanes)))

    def _at(self, row: t.Expr, x: t.Expr, lane: int) -> t.Expr:
        return t.Add(row, t.Add(t.Mul(x, self.e.i64(self.space.lanes)), self.e.i64(lane)))
