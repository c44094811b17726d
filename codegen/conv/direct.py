"""Direct convolution: sums in registers over channels and taps, weights packed as `spec.filters` says.

A tile of neighbouring results times a few blocks of filters lives in registers; each step broadcasts one element of the
source per result and loads one vector of weights per block. Groups are whole blocks, and only move the first channel.
Long sums are cut: rounding errors grow with the length of a sum, and a chunk of the weights stays in the level 2 cache
for all tiles of a unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import groupby

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.halves import folded, spread
from tilegraph.codegen.conv.results import STREAMED, UNROLLED
from tilegraph.codegen.conv.sliding import Sliding, Taps
from tilegraph.codegen.conv.tiles import MAX_TAPS, vectors_for, widest
from tilegraph.codegen.generated import Generated
from tilegraph.ops.conv import ConvSpace, half_vectors
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

# Products that are summed by themselves, about as many as in ONNX Runtime: with 576 errors reached 2.4 times its own.
# Plain results have one sum, and so few products (`ops.conv.lower`) that their parts need no memory.
CHUNK = 144
_WHOLE = 162  # up to which a sum is not cut: the parts of 147 (7x7 of 3 channels) or 160 cost more than they save
_ODD_UNITS = 16  # of a kernel, below which two threads would share an odd number badly


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, of kind conv, as the function `name` for registers of `vector_bits` bits."""
    return Direct(space, vector_bits).generate(name)


class Direct(Sliding):
    """The walk of `Sliding` with sums over channels; `codegen.conv.narrow` stores them in another layout."""

    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        assert space.weights_slot is not None
        e = self.e
        self.source = e.input(space.source_slot, "float")
        self.weights = e.input(space.weights_slot, "float")
        group = space.blocks // space.groups if space.groups > 1 else space.blocks
        length = self.line.out.as_int()
        self.vectors = space.schedule.vectors or vectors_for(length, group, vector_bits)
        if space.spread:
            group //= math.prod(v.extent.value for v in space.phases)  # those of a panel are of one phase
        if space.groups > 1 or space.spread:
            while group % self.vectors:
                self.vectors -= 1
        self.halves = half_vectors(space)
        self.pair = 2 if self.halves else 1  # channels that a vector of weights is for
        if self.halves:
            self.vectors = space.blocks
        self.width = widest(self.halves or self.vectors, vector_bits)
        if self.line.plain and length is not None:
            self.width = _even(length, self.width)
        self.taps = space.axes[-1].kernel.value
        self.long = False  # many taps alike are a loop
        self.height = 1 if self.row is None else self.row.kernel.value
        self.step = self.lanes if space.blocked else 1  # channels of a block
        self.panel_size = (self.halves or self.vectors) * self.lanes  # of one step of the channels
        self.per_row = self.step // self.pair * self.panel_size
        self.per_tap = self.height * self.per_row
        window = self.taps * self.height
        step = max(CHUNK // window, 1)
        if space.depth * window <= _WHOLE:
            step = -(-space.depth // self.lanes) * self.lanes
        if space.plain is not None:
            step = space.depth + self.lanes
        self.chunk = max(step // self.lanes, 1) * self.lanes if space.blocked else step
        self.apart = self.line.plain  # the first and the last chunk have their own code: one form of tile, or two
        self.chunks = -(-space.depth // self.chunk)
        if self.chunks > 1:
            self.chunk = -(-space.depth // self.chunks)
            if space.blocked:
                self.chunk = -(-self.chunk // self.lanes) * self.lanes
            self.chunks = -(-space.depth // self.chunk)

        # The next chunk of a panel, or the next panel, follows in memory.
        size = self.chunk // self.pair * self.taps * self.height * self.panel_size
        self.ahead = size if 4 * size * self.chunks * (space.blocks // self.vectors) > STREAMED else 0
        self.sums_at = 0
        if space.factor is not None:
            # A panel of weights times the factors, made anew for each unit; sums of chunks lie behind it.
            self.ahead = 0
            self.sums_at = -(-space.depth // self.step) * self.taps * self.per_tap
            self.scratch = Dim.of(4 * self.sums_at)
            self.memory = [e.flat("scratch", "float32")]

    def generate(self, name: str) -> Generated:
        assert self.space.weights_slot is not None
        strides = tuple(v.extent.value for v in self.space.phases)
        kind = "transposed" if strides else "pairs" if self.halves else "direct"
        filters = ((self.space.weights_slot, Filters(kind, self.panel_size // self.pair, self.step, strides)),)
        return self.run(name, filters, self.space.depth * self.taps * self.height * self.vectors)

    def _begin(self) -> None:
        e, space = self.e, self.space
        size = -(-space.depth // self.step) * self.taps * self.per_tap
        self.first_weight = e.share(t.Mul(self.panel, e.i64(size)))
        self.group = e.i64(0)
        if space.groups > 1:
            panels = space.blocks // space.groups // self.vectors
            self.group = e.share(t.Mul(t.Div(self.panel, e.i64(panels)), e.i64(space.depth // self.lanes)))
        if space.spread:
            e.set_loops(space.phases, e.share(t.Div(t.Mul(self.panel, e.i64(self.vectors)),
                                                    e.i64(-(-space.filters // self.lanes)))))
            self.phase = tuple(e.loops[v] for v in space.phases)
        self.used = self.weights
        if space.factor is not None:
            self._scale(self.first_weight)
            self.used, self.first_weight = self.memory[0], e.i64(0)

    def lacks_first(self, k: int) -> t.Expr | None:
        """Whether windows of the current phase have no first tap along spatial dim `k`; None: all have it."""
        spread = self.space.spread
        rest = spread[k].kernel.value % spread[k].stride if spread else 0
        return t.LE(self.e.i64(rest), self.phase[k]) if rest else None

    def taps_of_row(self) -> None:
        super().taps_of_row()
        if self.row is not None:
            self.low = self._without_first(0, self.low)

    def _without_first(self, k: int, low: t.Expr) -> t.Expr:
        e, lacks = self.e, self.lacks_first(k)
        return low if lacks is None else e.share(t.Max(low, t.Select(lacks, e.i64(1), e.i64(0))))

    def _scale(self, first: t.Expr) -> None:
        """The weights of the panel, from `first` on, times the factors of their channels."""
        e, space = self.e, self.space
        assert space.factor is not None
        outer, inner = space.channels
        size = self.taps * self.height
        with e.loop("b", -(-space.depth // self.step)) as b:
            count = e.i64(self.step)
            if space.depth % self.step:
                count = e.share(t.Min(count, t.Sub(e.i64(space.depth), t.Mul(b, e.i64(self.step)))))
            with e.loop("l", count) as c:
                e.loops[outer], e.loops[inner] = b, c
                factor = e.value(space.factor, inner, 1, {})
                with e.loop("k", size) as k:
                    line = t.Add(t.Mul(t.Add(t.Mul(b, e.i64(size)), k), e.i64(self.step)), c)
                    at = e.share(t.Mul(line, e.i64(self.panel_size)))
                    for j in range(self.vectors):
                        place = t.Add(at, e.i64(j * self.lanes))
                        value = e.read(self.weights, "float32", t.Add(first, place), self.lanes)
                        e.write(self.memory[0], place, e.math.mul(value, factor), self.lanes)

    def unit(self, walk: Callable[[], None]) -> None:
        e = self.e
        self._begin()
        if self.chunks == 1:
            self.first_channel, self.count = e.i64(0), e.i64(self.space.depth)
            walk()
            return
        if not self.memory:
            self.memory = [e.flat("scratch", "float32")]
        self.scratch = self.pixels * (self.vectors * self.lanes * 4) + 4 * self.sums_at
        if not self.apart:
            with e.loop("z", e.dim(self.pixels)) as z:
                at = t.Add(t.Mul(z, e.i64(self.now * self.lanes)), e.i64(self.sums_at))
                for j in range(self.now):
                    e.write(self.memory[0], t.Add(at, e.i64(j * self.lanes)), e.f32(0.0), self.lanes)
        with e.loop("c", self.chunks) as c:
            self.first_channel = e.share(t.Mul(c, e.i64(self.chunk)))
            self.count = e.share(t.Min(t.Sub(e.i64(self.space.depth), self.first_channel), e.i64(self.chunk)))
            self.starting, self.finishing = (t.EQ(c, e.i64(k)) for k in (0, self.chunks - 1))
            walk()

    def shared(self, parts: int, length: int) -> int:
        """Twice as many where units are odd and few. A panel then serves its parts one after the other, so that its
        weights are not fetched again."""
        units = parts * -(-self.space.blocks // self.vectors) * (self.space.n.as_int() or 1)
        if units % 2 == 0 or units >= _ODD_UNITS:
            return parts
        if self.row is None:
            if -(-length // self.width) < 4 * parts:  # a part has two tiles at least
                return parts
            self.width = _even(length, widest(self.halves or self.vectors, 32 * self.lanes), 2 * parts)
        elif length < 2 * parts:
            return parts
        self.streaming = True
        return 2 * parts

    # -- tiles ------------------------------------------------------------------------------------------------
    def tile(self, width: int, taps: Taps) -> None:
        """One loop nest for each tap of a line: taps that read the same elements would share them in registers that
        are not there."""

        def products(at: t.Expr, weight: t.Expr, sums: t.Buffer) -> None:
            done = 0
            for reads, group in groupby(taps):
                count = len(list(group))
                self._alike(at, weight, sums, reads, range(done, done + count))
                done += count

        self._sum(width, products)

    def _alike(self, at: t.Expr, weight: t.Expr, sums: t.Buffer, reads: tuple[int, ...], taps: range) -> None:
        """Neighbouring taps that the same results read: a loop where they are many (a spectrum has hundreds)."""
        e, element = self.e, self.line.dilation * self.element
        if reads and len(taps) > MAX_TAPS:
            with e.loop("k", len(taps), taps.start) as k:
                first = e.share(t.Add(weight, t.Mul(k, e.i64(self.per_tap))))
                self._column(e.share(t.Add(at, t.Mul(k, e.i64(element)))), first, sums, reads, 0)
        elif reads:
            lacks = self.lacks_first(len(self.space.axes) - 1)
            for tap in taps:
                with e.when(t.Not(lacks)) if tap == 0 and lacks is not None else nullcontext():
                    first = e.share(t.Add(weight, e.i64(tap * self.per_tap)))
                    self._column(at, first, sums, reads, tap * self.line.dilation)

    def edge(self, low: t.Expr, high: t.Expr) -> None:
        low = self._without_first(len(self.space.axes) - 1, low)

        def products(at: t.Expr, weight: t.Expr, sums: t.Buffer) -> None:
            e = self.e
            with e.loop("k", t.Sub(high, low), low) as k:
                first = e.share(t.Add(weight, t.Mul(k, e.i64(self.per_tap))))
                base = e.share(t.Add(at, t.Mul(k, e.i64(self.line.dilation * self.element))))
                self._column(base, first, sums, (0,), 0)

        self._sum(1, products)

    def _column(self, at: t.Expr, weight: t.Expr, sums: t.Buffer, reads: tuple[int, ...], shift: int) -> None:
        """The taps of one column of the window, for all channels of a block."""
        e = self.e

        def channels(at: t.Expr, weight: t.Expr) -> None:
            if self.step == 1:
                self._products(at, weight, sums, reads, shift)
                return
            count = t.Div(self.valid, e.i64(self.pair)) if self.halves else self.valid
            with e.loop("l", count) as c:
                next_weight = e.share(t.Add(weight, t.Mul(c, e.i64(self.panel_size))))
                channel = t.Mul(c, e.i64(self.pair)) if self.halves else c
                self._products(t.Add(at, channel), next_weight, sums, reads, shift)

        if self.height == 1 and self.safe_row:
            channels(at, weight)
            return
        with e.loop("r", t.Sub(self.high, self.low), self.low) as r:
            channels(e.share(t.Add(at, t.Mul(r, self.row_step))),
                     e.share(t.Add(weight, t.Mul(r, e.i64(self.per_row)))))

    def _products(self, at: t.Expr, weight: t.Expr, sums: t.Buffer, reads: tuple[int, ...], shift: int) -> None:
        e = self.e
        count = self.halves or self.now
        right = self.weights_at(self.used, weight, self.ahead, count)
        for i in reads:
            place_of = t.Add(at, e.i64((i * self.line.stride + shift) * self.element))
            left = spread(e, self.source, place_of, self.lanes, self.halves > 0)
            for j, one in enumerate(right):
                place = (i * count + j) * self.lanes
                old = e.read(sums, "float32", place, self.lanes).expr
                e.write(sums, place, self.fma(left, one, old), self.lanes)

    def _sum(self, width: int, products: Callable[[t.Expr, t.Expr, t.Buffer], None]) -> None:
        """All channels of the chunk, and what follows them."""
        e, space = self.e, self.space
        count = width * (self.halves or self.now)
        sums = e.local("acc", "float32", count * self.lanes)
        for place in range(0, count * self.lanes, self.lanes):
            e.write(sums, place, e.f32(0.0), self.lanes)
        per_block = self.per_tap * self.taps
        step = e.i64(self.step)
        first_block = t.Div(self.first_channel, step)
        first = e.share(t.Add(self.first_weight, t.Mul(first_block, e.i64(per_block))))
        if space.blocked:
            outer, inner = space.channels
            base = self.source_at({outer: t.Add(self.group, first_block), inner: e.i64(0)})
        else:
            (outer,) = space.channels
            base = self.source_at({outer: self.first_channel})
        with e.loop("b", t.Div(t.Add(self.count, e.i64(self.step - 1)), step)) as b:
            at = e.share(t.Add(base, t.Mul(b, e.dim(space.source.coef(outer)))))
            self.valid = step
            if space.depth % self.step:
                self.valid = e.share(t.Min(step, t.Sub(self.count, t.Mul(b, step))))
            products(at, e.share(t.Add(first, t.Mul(b, e.i64(per_block)))), sums)
        if self.halves:
            sums = folded(e, sums, width, self.halves, self.lanes)
        self._finish(sums, width, [k * self.lanes for k in range(width * self.now)])

    def _finish(self, sums: t.Buffer, width: int, places: list[int]) -> None:
        e = self.e
        if self.chunks == 1:
            self._from_registers(sums, width, places)
            return
        line = e.dim(self.line.out) if self.row is not None else e.i64(0)
        pixel = t.Add(t.Mul(t.Sub(self.y, self.first_row), line), t.Sub(self.x, self.first_pixel))
        kept = e.share(t.Add(t.Mul(pixel, e.i64(self.now * self.lanes)), e.i64(self.sums_at)))
        old = {place: t.Add(kept, e.i64(place)) for place in places}

        def keep(first: bool = False) -> None:
            for place in places:
                value = e.read(sums, "float32", place, self.lanes)
                if not first:
                    value = e.math.add(value, e.read(self.memory[0], "float32", old[place], self.lanes))
                e.write(self.memory[0], old[place], value, self.lanes)

        if not self.apart:
            keep()
            with e.when(self.finishing):
                self.epilogue(self.memory[0], width, kept)
            return
        with e.block() as begin:
            keep(first=True)
        with e.block() as middle:
            keep()
        with e.block() as end:
            whole = e.local("whole", "float32", len(places) * self.lanes)
            for place in places:
                before = e.read(self.memory[0], "float32", old[place], self.lanes)
                e.write(whole, place, e.math.add(e.read(sums, "float32", place, self.lanes), before), self.lanes)
            self.epilogue(whole, width)
        others = t.sequence(middle) if self.chunks > 2 else None
        e.stmts.append(t.IfThenElse(self.starting, t.sequence(begin),
                                    t.IfThenElse(self.finishing, t.sequence(end), others)))

    def _from_registers(self, sums: t.Buffer, width: int, places: list[int]) -> None:
        """A loop needs the sums in memory; as a copy, so that the sums themselves stay in registers."""
        e = self.e
        if width * self.now == 1 or self.epilogue_cost <= UNROLLED:
            self.epilogue(sums, width)
            return
        made = e.local("made", "float32", width * self.now * self.lanes)
        for place in places:
            e.write(made, place, e.read(sums, "float32", place, self.lanes), self.lanes)
        self.epilogue(made, width)


def _even(length: int, width: int, parts: int = 1) -> int:
    """The widest tile of at most `width`, not much less, that leaves the smallest rest of so many parts of a line."""
    if length <= width:
        return length
    return min(range(width, max(width * 3 // 4, 1) - 1, -1), key=lambda w: (-length % (w * parts), -w))
