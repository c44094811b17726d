"""Convolution in groups of which a block of channels holds several: ResNeXt's groups of 4, a depthwise multiplier.

The filters of a block read `span` neighbouring channels, which lie in one block of the source: one load. For each of
the `depth` channels of a group a shuffle gives every lane that channel of its own group, so a tap takes `depth`
products, none of them with zeros. Weights are packed as [block][row][column][channel of the group][filter].
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

_WIDTH = {256: 6, 512: 14}


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, of kind grouped, as the function `name` for registers of `vector_bits` bits."""
    return _Groups(space, vector_bits).generate(name)


class _Groups(Sliding):
    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        assert space.weights_slot is not None
        self.source = self.e.input(space.source_slot, "float")
        self.weights = self.e.input(space.weights_slot, "float")
        self.depth = space.depth
        self.group = space.filters // space.groups  # filters of one
        self.span = self.lanes * self.depth // self.group
        self.at_once(_WIDTH[vector_bits])
        self.taps = math.prod(a.kernel.value for a in space.axes)

    def generate(self, name: str) -> Generated:
        assert self.space.weights_slot is not None
        filters = ((self.space.weights_slot, Filters("taps", self.lanes)),)
        return self.run(name, filters, 2 * self.taps * self.depth * self.vectors)

    # -- tiles ------------------------------------------------------------------------------------------------
    def tile(self, width: int, taps: Taps) -> None:
        sums = self.begin(width)

        def products(bases: list[t.Expr], weights: list[t.Expr]) -> None:
            for k, reads in enumerate(taps):
                for j in range(self.now if reads else 0):
                    found = self._weights(weights[j], self.e.i64(k * self.depth * self.lanes))
                    for i in reads:
                        offset = (i * self.line.stride + k * self.line.dilation) * self.element
                        self._take(sums, i * self.now + j, t.Add(bases[j], self.e.i64(offset)), found)

        self._rows(products)
        self.epilogue(sums, width)

    def edge(self, low: t.Expr, high: t.Expr) -> None:
        sums = self.begin(1)

        def products(bases: list[t.Expr], weights: list[t.Expr]) -> None:
            e = self.e
            # Each line by itself: the rounding error grows with the length of a sum.
            line = self.begin(1)
            with e.loop("k", t.Sub(high, low), low) as k:
                step = t.Mul(k, e.i64(self.line.dilation * self.element))
                for j in range(self.now):
                    found = self._weights(weights[j], t.Mul(k, e.i64(self.depth * self.lanes)))
                    self._take(line, j, t.Add(bases[j], step), found)
            for j in range(self.now):
                old, new = (e.read(part, "float32", j * self.lanes, self.lanes) for part in (sums, line))
                e.write(sums, j * self.lanes, e.math.add(old, new), self.lanes)

        self._rows(products)
        self.epilogue(sums, 1)

    def _rows(self, products: Callable[[list[t.Expr], list[t.Expr]], None]) -> None:
        e, space = self.e, self.space
        outer, inner = space.channels
        parts = self.lanes // self.span  # blocks of filters that read one block of the source
        bases, weights = [], []
        for j in range(self.now):
            block = self.block_of(j)
            at = {outer: block, inner: e.i64(0)}
            if parts > 1:
                at = {outer: e.share(t.Div(block, e.i64(parts))),
                      inner: e.share(t.Mul(t.Rem(block, e.i64(parts)), e.i64(self.span)))}
            bases.append(self.source_at(at))
            weights.append(e.share(t.Mul(block, e.i64(self.taps * self.depth * self.lanes))))
        line = self.line.kernel.value * self.depth * self.lanes
        with e.loop("r", t.Sub(self.high, self.low), self.low) as r:
            here = [e.share(t.Add(base, t.Mul(r, self.row_step))) for base in bases]
            products(here, [e.share(t.Add(w, t.Mul(r, e.i64(line)))) for w in weights])

    def _weights(self, first: t.Expr, offset: t.Expr) -> list[V]:
        e = self.e
        return [e.math.share(e.read(self.weights, "float32", t.Add(t.Add(first, offset), e.i64(c * self.lanes)),
                                    self.lanes)) for c in range(self.depth)]

    def _take(self, sums: t.Buffer, which: int, at: t.Expr, weights: list[V]) -> None:
        e, place = self.e, which * self.lanes
        element = e.math.share(e.read(self.source, "float32", at, self.span))
        total = e.read(sums, "float32", place, self.lanes)
        for c, weight in enumerate(weights):
            total = e.math.share(self.fma(self._channel(element, c), weight.expr, total.expr))
        e.write(sums, place, total, self.lanes)

    def _channel(self, element: V, c: int) -> t.Expr:
        """Channel `c` of its group, in the lane of each filter."""
        if self.span == 1:
            return t.Broadcast(element.expr, self.lanes)
        order = [j // self.group * self.depth + c for j in range(self.lanes)]
        # A shuffle has no more results than operands: copies fill up.
        copies = [element.expr] * (self.lanes // self.span)
        return element.expr if order == list(range(self.span)) else \
            t.Shuffle(copies, [t.int_imm("int32", o) for o in order])

    def finished(self, value: V, block: t.Expr) -> V:
        return self.of_channels(value, block)
