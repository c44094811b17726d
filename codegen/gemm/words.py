"""Products in float32 with weights in blocks of 4 or 8 bits, which lie as words: eight or four integers of a column.

A word holds neighbours along k, so a vector of words is read once and gives its integers by shifts. Where a register
has 16 lanes, integers of 4 bits are looked up as floats: the permutation reads the low 4 bits of a lane and needs no
mask. A weight is (integer - zero point) * scale, rounded as the original rounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.kernel import CHUNK, Ahead, added
from tilegraph.codegen.gemm.stored import FEW, ComputedPanels
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V, typed
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.gemm.space import Blocks
from tilegraph.spec.filters import Filters

_CHAINS = 12  # sums in flight
_NEAR = 8192  # bytes: how far ahead weights are asked for
_LINE = 16  # words of a cache line


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, whose `quantized` are `Blocks` that are not rounded, as the function `name`."""
    assert isinstance(space.quantized, Blocks)
    return _Words(space, space.quantized, vector_bits).run(name)


def weight_layouts(slot: int, how: Blocks, panel: int, n: int) -> list[tuple[int, Filters]]:
    """How weights, scales and zero points are packed, by input."""
    filters = [(slot, Filters(f"bits{how.bits}", panel, n)), (how.scales_slot, Filters("rows", panel, n))]
    if how.zeros_slot is not None:
        filters.append((how.zeros_slot, Filters("zeros4" if how.bits == 4 else "rows", panel, n)))
    return filters


class _Words(ComputedPanels):
    def __init__(self, space: GemmSpace, how: Blocks, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.how = how
        static = space.m.as_int()
        if static is not None and 5 < static < FEW:
            self.tile = replace(self.tile, vectors=min(2, self.tile.vectors))
        self.each = 32 // how.bits  # integers of a word
        self.words = how.block // self.each  # of a column's block
        self.sums = 2 * self.tile.rows  # vectors of sums in registers, beside the weights
        self.span = range(0)  # vectors of the panel
        self.looked_up = how.bits == 4 and self.tile.lanes == 16

    def open(self) -> None:
        super().open()
        e, how = self.e, self.how
        self.weights = e.input(self.space.right_slot, "int32")
        self.scales = e.input(how.scales_slot, "float")
        self.zeros = None if how.zeros_slot is None else e.input(how.zeros_slot, "uint8")

    def layouts(self) -> list[tuple[int, Filters]]:
        return weight_layouts(self.space.right_slot, self.how, self.tile.panel, self.space.n)

    # -- the matrix -----------------------------------------------------------------------------------------------
    def _block(self, block: t.Expr, count: int) -> Iterator[tuple[t.Expr, int, list[V]]]:
        """While emitting: the rows of a block of which `count` exist, as (first of a word's rows in the block, which
        of them, vectors)."""
        e, m, how, lanes = self.e, self.e.math, self.how, self.tile.lanes
        before = t.Add(t.Mul(self.panel, e.i64(how.count)), block)
        at = e.share(t.Mul(before, e.i64(self.tile.panel)))
        scales = [m.share(e.read(self.scales, "float32", t.Add(at, e.i64(v * lanes)), lanes))
                  for v in self.span]
        zeros = self._zeros(block)
        weights = e.share(t.Mul(at, e.i64(self.words)))
        table = self._table() if self.looked_up else None
        whole, rest = divmod(count, self.each)
        for first, times, integers in ((0, whole, self.each), (whole, 1 if rest else 0, rest)):
            if times:
                with e.loop("w", times) as w:
                    row = e.share(t.Add(w, e.i64(first)))
                    place = e.share(t.Add(weights, t.Mul(row, e.i64(self.tile.panel))))
                    for line in range(0 if self.span.start else -(-self.vectors * lanes // _LINE)):
                        e.prefetch(self.weights, t.Add(place, e.i64(_NEAR // 4 + line * _LINE)))
                    read = [m.share(e.read(self.weights, "int32", t.Add(place, e.i64(v * lanes)), lanes))
                            for v in self.span]
                    start = e.share(t.Mul(row, e.i64(self.each)))
                    for k in range(integers):
                        found = zip(read, scales, zeros, strict=True)
                        yield start, k, [self._weight(*of, k, table) for of in found]

    def _zeros(self, block: t.Expr) -> list[V]:
        """The zero points of a block, or their difference to what the table looks up."""
        e, m, how, lanes = self.e, self.e.math, self.how, self.tile.lanes
        if self.zeros is None:
            return [m.const(float(1 << (how.bits - 1)), "float32")] * len(self.span)
        each = 8 // how.bits
        before = t.Add(t.Mul(self.panel, e.i64(-(-how.count // each) * each)), block)
        at = e.share(t.Mul(before, e.i64(self.tile.panel)))
        raw = [e.read(self.zeros, "uint8", t.Add(at, e.i64(v * lanes)), lanes) for v in self.span]
        return [m.share(m.cast(m.cast(value, "int32"), "float32")) for value in raw]

    def _table(self) -> V:
        """The floats of the integers of 4 bits, less the zero point where all have the same."""
        less = 8 if self.zeros is None else 0
        values = [self.e.f32(float(k - less)).expr for k in range(16)]
        return self.e.math.share(V(t.Shuffle(values, [t.int_imm("int32", k) for k in range(16)]), "float32", 16))

    def _weight(self, word: V, scale: V, zero: V, k: int, table: V | None) -> V:
        """Integer number `k` of the words, less the zero point, times the scale."""
        m, bits = self.e.math, self.how.bits
        by = 8 * (k % 4) + 4 * (k // 4)  # the first half of eight lies in the low halves of the bytes
        moved = m.bitcast(word, "uint32")
        if by:
            moved = m.shr(moved, m.const(by, "uint32"))
        if table is not None:
            found = t.intrinsic(typed("float32", 16), "llvm.x86.avx512.permvar.sf.512", table.expr,
                                m.bitcast(moved, "int32").expr)
            value = m.share(V(found, "float32", 16))
            return m.share(m.mul(value if self.zeros is None else m.sub(value, zero), scale))
        only = m.band(moved, m.const((1 << bits) - 1, "uint32"))
        return m.share(m.mul(m.sub(m.cast(m.bitcast(only, "int32"), "float32"), zero), scale))

    def _blocks(self) -> tuple[int, int]:
        """How many whole blocks there are, and how many rows are left."""
        return divmod(self.space.depth, self.how.block)

    def compute(self) -> None:
        e, lanes, panel = self.e, self.tile.lanes, self.tile.panel
        whole, rest = self._blocks()
        self.span = range(self.vectors)

        def emit(block: t.Expr, count: int) -> None:
            first = e.share(t.Mul(block, e.i64(self.how.block)))
            for start, k, values in self._block(block, count):
                at = e.share(t.Mul(t.Add(t.Add(first, start), e.i64(k)), e.i64(panel)))
                for v, value in enumerate(values):
                    e.write(self.right, t.Add(at, e.i64(v * lanes)), value, lanes)

        if whole:
            with e.loop("b", whole) as b:
                emit(b, self.how.block)
        if rest:
            emit(e.i64(whole), rest)

    # -- few rows -------------------------------------------------------------------------------------------------
    def _group(self, row: t.Expr, rows: int, base: t.Expr, column: t.Expr, columns: int, ahead: Ahead) -> None:
        if self.whole:
            super()._group(row, rows, base, column, columns, ahead)
            return
        e, lanes = self.e, self.tile.lanes
        starts = self.left_rows(row, rows)
        made = e.local("made", "float32", rows * self.vectors * lanes)
        for k in range(rows * self.vectors):
            e.write(made, k * lanes, e.f32(0.0), lanes)
        whole, rest = self._blocks()
        each = max(1, CHUNK // self.how.block)  # blocks that are summed by themselves
        width = max(1, self.sums // rows)
        for low in range(0, self.vectors, width):
            self.span = range(low, min(low + width, self.vectors))
            if whole:
                with e.loop("c", -(-whole // each)) as c:
                    first = e.share(t.Mul(c, e.i64(each)))
                    blocks = e.share(t.Min(t.Sub(e.i64(whole), first), e.i64(each)))
                    self._chunk(made, starts, first, blocks, self.how.block)
            if rest:
                self._chunk(made, starts, e.i64(whole), e.i64(1), rest)
        self._results(made, row, rows, column, columns)

    def _chunk(self, made: t.Buffer, starts: list[t.Expr], first: t.Expr, blocks: t.Expr, count: int) -> None:
        """`blocks` blocks from `first`, of which `count` rows each exist, join the sums of `made`."""
        e, lanes = self.e, self.tile.lanes
        each = len(self.span)
        places = [k * lanes for k in range(len(starts) * each)]
        chains = [e.local(f"acc{c}", "float32", len(places) * lanes) for c in range(max(1, _CHAINS // len(places)))]
        for sums in chains:
            for place in places:
                e.write(sums, place, e.f32(0.0), lanes)
        with e.loop("b", blocks) as b:
            block = e.share(t.Add(first, b))
            lefts = [e.share(t.Add(start, t.Mul(block, e.i64(self.how.block)))) for start in starts]
            for begin, k, right in self._block(block, count):
                sums = chains[k % len(chains)]
                for r, left in enumerate(lefts):
                    value = e.math.widen(e.read(self.left, "float32", t.Add(left, t.Add(begin, e.i64(k)))), lanes)
                    for v in range(each):
                        place = (r * each + v) * lanes
                        call = self.multiply(value, right[v].expr, e.read(sums, "float32", place, lanes).expr)
                        e.write(sums, place, V(call, "float32", lanes), lanes)
        for k, place in enumerate(places):
            value = added(e, [e.read(sums, "float32", place, lanes) for sums in chains])
            into = (k // each * self.vectors + self.span.start + k % each) * lanes
            e.write(made, into, e.math.add(value, e.read(made, "float32", into, lanes)), lanes)
