"""Windows over each channel by itself: depthwise convolution, maximum and average pooling.

Every result is a vector of channels, so elements and weights are loaded as they lie; weights are packed as
[block][tap][channel]. The elements of a line that several results read are loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.sliding import Sliding, Taps
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.conv import ConvSpace
from tilegraph.spec.filters import Filters

_WIDTH = {256: 7, 512: 14}

Step = Callable[[t.Expr, V], None]


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, of any kind but conv, as the function `name` for registers of `vector_bits` bits."""
    return ChannelTaps(space, vector_bits).generate(name)


class ChannelTaps(Sliding):
    repeatable = True
    streaming = True

    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.source = self.e.input(space.source_slot, "float")
        self.weights = None if space.weights_slot is None else self.e.input(space.weights_slot, "float")
        self.at_once(self.widest_tile(), self.together)
        self.total = math.prod(a.kernel.as_int() or 64 for a in space.axes)

    def generate(self, name: str) -> Generated:
        slot = self.space.weights_slot
        filters = () if slot is None else ((slot, Filters("taps", self.lanes)),)
        return self.run(name, filters, self.total * self.vectors)

    def widest_tile(self) -> int:
        """Results of a line that are summed at once, at most."""
        return _WIDTH[32 * self.lanes]

    # -- tiles ------------------------------------------------------------------------------------------------
    def tile(self, width: int, taps: Taps) -> None:
        sums = self.start(width)

        def products(bases: list[t.Expr], weights: list[t.Expr]) -> None:
            e = self.e
            for k, reads in enumerate(taps):
                for j in range(self.now if reads else 0):
                    weight = self.weight(weights, j, e.i64(k * self.lanes))
                    for i in reads:
                        offset = (i * self.line.stride + k * self.line.dilation) * self.element
                        value = e.read(self.source, "float32", t.Add(bases[j], e.i64(offset)), self.lanes)
                        self.take(sums, i * self.now + j, value, weight)

        self._rows(products)
        self.divide(sums, self.counted(taps, width))
        self.epilogue(sums, width)

    def edge(self, low: t.Expr, high: t.Expr) -> None:
        sums = self.start(1)

        def products(bases: list[t.Expr], weights: list[t.Expr]) -> None:
            e = self.e
            # Each line by itself: the rounding error grows with the length of a sum.
            line = self.start(1)
            with e.loop("k", t.Sub(high, low), low) as k:
                step = t.Mul(k, e.i64(self.line.dilation * self.element))
                for j in range(self.now):
                    weight = self.weight(weights, j, t.Mul(k, e.i64(self.lanes)))
                    value = e.read(self.source, "float32", t.Add(bases[j], step), self.lanes)
                    self.take(line, j, value, weight)
            for j in range(self.now):
                old, new = (e.read(part, "float32", j * self.lanes, self.lanes) for part in (sums, line))
                joined = e.math.maximum(old, new) if self.space.kind == "max" else e.math.add(old, new)
                e.write(sums, j * self.lanes, joined, self.lanes)

        self._rows(products)
        self.divide(sums, [t.Sub(high, low)])
        self.epilogue(sums, 1)

    def start(self, width: int) -> t.Buffer:
        return self.begin(width, -math.inf if self.space.kind == "max" else 0.0)

    def _rows(self, products: Callable[[list[t.Expr], list[t.Expr]], None]) -> None:
        e = self.e
        line = self.line.kernel.as_int() or 0
        bases, weights = self.places()
        with e.loop("r", t.Sub(self.high, self.low), self.low) as r:
            here = [e.share(t.Add(base, t.Mul(r, self.row_step))) for base in bases]
            products(here, [e.share(t.Add(w, t.Mul(r, e.i64(line * self.lanes)))) for w in weights])

    def places(self) -> tuple[list[t.Expr], list[t.Expr]]:
        """Where the first tap of result (y, x) lies, and where the weights begin, for each block."""
        e, space = self.e, self.space
        taps = 1 if self.weights is None else math.prod(a.kernel.value for a in space.axes)
        bases, weights = [], []
        for j in range(self.now):
            block = self.block_of(j)
            at = {space.lane: e.i64(0)}
            if space.block is not None:
                at[space.block] = block
            bases.append(self.source_at(at))
            weights.append(e.share(t.Mul(block, e.i64(taps * self.lanes))))
        return bases, weights

    def weight(self, weights: list[t.Expr], j: int, offset: t.Expr) -> V | None:
        if self.weights is None:
            return None
        e = self.e
        return e.math.share(e.read(self.weights, "float32", t.Add(weights[j], offset), self.lanes))

    def take(self, sums: t.Buffer, which: int, value: V, weight: V | None) -> None:
        e, place = self.e, which * self.lanes
        old = e.read(sums, "float32", place, self.lanes)
        if weight is not None:
            new = self.fma(value.expr, weight.expr, old.expr)
        elif self.space.kind == "max":
            new = e.math.maximum(old, e.math.share(value))
        else:
            new = e.math.add(old, value)
        e.write(sums, place, new, self.lanes)

    def counted(self, taps: Taps, width: int) -> list[t.Expr]:
        """How many elements of a line each result of a tile reads."""
        return [self.e.i64(sum(i in reads for reads in taps)) for i in range(width)]

    def divide(self, sums: t.Buffer, counts: list[t.Expr], first: int = 0) -> None:
        """The average of the results from `first` on: by the elements that there are, or by all that a window has."""
        e = self.e
        if self.space.kind not in ("average", "padded_average"):
            return
        rows = e.share(t.Sub(self.high, self.low))
        for i, count in enumerate(counts):
            elements = e.i64(self.total) if self.space.kind == "padded_average" else t.Mul(rows, count)
            size = e.math.share(e.math.cast(V(elements, "int64"), "float32"))
            for j in range(self.now):
                place = ((first + i) * self.now + j) * self.lanes
                e.write(sums, place, e.math.div(e.read(sums, "float32", place, self.lanes), size), self.lanes)

    def finished(self, value: V, block: t.Expr) -> V:
        return self.of_channels(value, block)
