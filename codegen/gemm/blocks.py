"""Products with weights in blocks of 4 or 8 bits, of which rows are rounded to 8 bits by block.

A task converts its rows when it comes to their block of rows: for each block of k the largest magnitude gives a scale,
elements become int8, and their sum is kept with the sign turned. In a block of k sums of products of unsigned weights
with signed elements begin with what the zero point takes away, are exact, and join the float sums times both scales.
This is how MLAS, ONNX Runtime's library, does it at accuracy level 4 (sqnbitgemm), down to the roundings of a row.
"""

from __future__ import annotations

from collections.abc import Collection

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm.converted import ConvertedRows
from tilegraph.codegen.gemm.dots import Dots
from tilegraph.codegen.gemm.kernel import Ahead
from tilegraph.codegen.gemm.tile import Tile
from tilegraph.codegen.gemm.words import weight_layouts
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.gemm.space import Blocks
from tilegraph.spec.dims import Dim

_NIBBLES = 0x0F0F0F0F
_MAGNITUDE = 0x7FFFFFFF
_UNROLLED = 8  # steps of a block at most; more are a loop
_NEAR = 8192  # bytes: how far ahead weights are asked for, and the scales that belong to them
_SLOW = 3  # rows from which on multiplications leave the memory time for more than the weights
_FEW = 4  # rows that read a wide panel faster than a narrow one; eight rows multiply with two vectors at a time
_WIDE, _NARROW = 4, 2  # vectors of a panel

# LLVM aligns a function's stack for what the function says it keeps there, not for the registers it spills; a spilled
# register that crosses a line costs two accesses.
STACK = """target triple = "x86_64-unknown-linux-gnu"
define i32 @tg_align_stack() alwaysinline nounwind {
  %line = alloca i32, align 64
  store volatile i32 0, ptr %line
  %r = load volatile i32, ptr %line
  ret i32 %r
}
"""


def generate(space: GemmSpace, name: str, vector_bits: int, features: Collection[str]) -> Generated:
    """Emits `space`, whose `quantized` are `Blocks`, as the function `name`."""
    assert isinstance(space.quantized, Blocks)
    return _Blocks(space, space.quantized, vector_bits, features).run(name)


class _Blocks(ConvertedRows):
    """A converted row: its blocks as bytes, then a scale and a turned sum for each block."""

    def __init__(self, space: GemmSpace, how: Blocks, vector_bits: int, features: Collection[str]) -> None:
        self.how = how
        self.quads = how.block // 4  # words of a block of a converted row
        super().__init__(space, vector_bits, how.count * (self.quads + 2))
        lanes = self.tile.lanes
        rows = 8 if vector_bits >= 512 else 4
        static = space.m.as_int()
        vectors = _WIDE if static is None or static <= _FEW else _NARROW
        self.tile = Tile(lanes, rows, min(vectors, -(-space.n // lanes)))
        self.sums = 2 * rows  # vectors of sums in registers, beside as many halves of weights as vectors of them
        self.depth = how.count * self.quads
        self.steps = self.quads * how.bits // 8  # words of a column's block
        self.dots = Dots.choose(self.e, vector_bits, features)
        self.span = range(0)

    def open(self) -> None:
        super().open()
        e = self.e
        e.imports = STACK
        e.share(t.external("int32", "tg_align_stack"), "int32")
        self.bytes, self.floats = e.flat("bytes", "int8"), e.flat("floats", "float32")
        self.scales = e.input(self.how.scales_slot, "float")
        self.zeros = None if self.how.zeros_slot is None else e.input(self.how.zeros_slot, "uint8")

    def finish(self, name: str, memory: list[t.Buffer], *, extent: Dim, scratch: Dim, grain: Dim) -> Generated:
        panel, n, how = self.tile.panel, self.space.n, self.how
        filters = weight_layouts(self.space.right_slot, how, panel, n)
        return self.e.finish(name, [*memory, self.left, self.bytes, self.floats], extent=extent, align=1,
                             scratch=self.scratch, grain=grain, filters=tuple(sorted(filters, key=lambda f: f[0])),
                             features=self.dots.features)

    def base(self, column: t.Expr) -> t.Expr:
        e, how = self.e, self.how
        self.scales_at = e.share(t.Mul(column, e.i64(how.count)))
        each = 8 // how.bits
        self.zeros_at = e.share(t.Mul(column, e.i64(-(-how.count // each) * each)))
        return e.share(t.Mul(column, e.i64(how.count * self.steps)))

    def _share(self, group: t.Expr) -> Ahead | None:
        return None

    # -- rows -----------------------------------------------------------------------------------------------------
    def convert(self, start: t.Expr, place: t.Expr) -> None:
        e, how = self.e, self.how
        whole, rest = divmod(self.space.depth, how.block)
        if whole:
            with e.loop("b", whole) as b:
                self._round(t.Add(start, t.Mul(b, e.i64(how.block))), place, b, how.block)
        if rest:
            self._round(t.Add(start, e.i64(whole * how.block)), place, e.i64(whole), rest)

    def _round(self, start: t.Expr, place: t.Expr, block: t.Expr, count: int) -> None:
        """`count` elements of a block from `start`, the others are zero."""
        e, m, how = self.e, self.e.math, self.how
        lanes = min(self.dots.lanes, how.block)
        start = e.share(start)
        part = e.local("part", "float32", how.block)
        for at in range(0, how.block, lanes):
            if at + lanes <= count:
                e.write(part, at, e.read(self.source, "float32", t.Add(start, e.i64(at)), lanes), lanes)
            else:
                e.write(part, at, e.f32(0.0), lanes)
        done = count // lanes * lanes
        if done < count:
            with e.loop("c", count - done, done) as c:
                e.write(part, c, e.read(self.source, "float32", t.Add(start, c)))
        values = [m.share(e.read(part, "float32", at, lanes)) for at in range(0, how.block, lanes)]
        # Without their sign floats are ordered as integers, for which a maximum is one instruction; NaN is above all.
        bits = [m.band(m.bitcast(value, "int32"), m.const(_MAGNITUDE, "int32")) for value in values]
        largest = bits[0]
        for one in bits[1:]:
            largest = m.maximum(largest, one)
        found = V(t.intrinsic("int32", "llvm.vector.reduce.smax", largest.expr), "int32")
        peak = m.bitcast(m.share(found), "float32")
        scale = m.div(peak, e.f32(127.0))
        inverse = m.select(m.eq(peak, e.f32(0.0)), e.f32(0.0), m.div(e.f32(127.0), peak))
        words = e.share(t.Add(place, t.Mul(block, e.i64(self.quads))))
        into = e.share(t.Mul(words, e.i64(4)))
        total: V | None = None
        for k, value in enumerate(values):
            rounded = m.cast(m.round_even(m.mul(value, inverse)), "int32")
            e.write(self.bytes, t.Add(into, e.i64(k * lanes)), m.cast(rounded, "int8"), lanes)
            total = rounded if total is None else m.add(total, rounded)
        assert total is not None
        sums = m.share(V(t.intrinsic("int32", "llvm.vector.reduce.add", total.expr), "int32"))
        behind = e.share(t.Add(place, t.Add(e.i64(how.count * self.quads), t.Mul(block, e.i64(2)))))
        e.write(self.floats, behind, scale)
        times = 1 if how.zeros_slot is not None else 1 << (how.bits - 1)
        e.write(self.left, t.Add(behind, e.i64(1)), m.mul(sums, m.const(-times, "int32")))

    # -- a group of rows ------------------------------------------------------------------------------------------
    def _group(self, row: t.Expr, rows: int, base: t.Expr, column: t.Expr, columns: int, ahead: Ahead) -> None:
        e, lanes = self.e, self.tile.lanes
        starts = self.left_rows(row, rows)
        places = [k * lanes for k in range(rows * self.vectors)]
        made = e.local("made", "float32", len(places) * lanes)
        for place in places:
            e.write(made, place, e.f32(0.0), lanes)
        width = max(1, self.sums // rows)
        for low in range(0, self.vectors, width):
            self.span = range(low, min(low + width, self.vectors))
            with e.loop("b", self.how.count) as b:
                self._block(made, starts, base, b)
        self._results(made, row, rows, column, columns)

    def _block(self, made: t.Buffer, starts: list[t.Expr], base: t.Expr, block: t.Expr) -> None:
        """What a block of k adds to the vectors `span` of the panel."""
        e, m, lanes = self.e, self.e.math, self.tile.lanes
        rows, each = len(starts), len(self.span)
        chains = [e.local(f"acc{c}", "int32", rows * each * lanes) for c in range(2 if rows <= 2 else 1)]
        behind = t.Add(e.i64(self.how.count * self.quads), t.Mul(block, e.i64(2)))
        self._begin(chains, starts, behind, block)
        self._multiply(chains, starts, base, block)
        at = e.share(t.Add(self.scales_at, t.Mul(block, e.i64(self.tile.panel))))
        if rows >= _SLOW and self.span.start == 0:
            self._ask(self.scales, t.Add(at, e.i64(_NEAR // 4 // self.steps)))
        scales = [m.share(e.read(self.scales, "float32", t.Add(at, e.i64(v * lanes)), lanes)) for v in self.span]
        for r, start in enumerate(starts):
            scale = m.share(e.read(self.floats, "float32", t.Add(start, behind)))
            for k, v in enumerate(self.span):
                total = e.read(chains[0], "int32", (r * each + k) * lanes, lanes)
                for more in chains[1:]:
                    total = m.add(total, e.read(more, "int32", (r * each + k) * lanes, lanes))
                place = (r * self.vectors + v) * lanes
                before = e.read(made, "float32", place, lanes)
                value = m.fma(m.cast(total, "float32"), m.mul(scales[k], scale), before)
                e.write(made, place, value, lanes)

    def _begin(self, chains: list[t.Buffer], starts: list[t.Expr], behind: t.Expr, block: t.Expr) -> None:
        """What the zero points take away."""
        e, m, lanes = self.e, self.e.math, self.tile.lanes
        zeros: list[V] = []
        if self.zeros is not None:
            at = t.Add(self.zeros_at, t.Mul(block, e.i64(self.tile.panel)))
            stored = [e.read(self.zeros, "uint8", t.Add(at, e.i64(v * lanes)), lanes) for v in self.span]
            zeros = [m.cast(value, "int32") for value in stored]
        for r, start in enumerate(starts):
            turned = e.math.share(e.read(self.left, "int32", t.Add(t.Add(start, behind), e.i64(1))))
            for k in range(len(self.span)):
                place = (r * len(self.span) + k) * lanes
                first = turned
                if zeros:  # both fit 16 bits
                    first = V(self.dots.pairs(zeros[k].expr, m.widen(turned, lanes)), "int32", lanes)
                e.write(chains[0], place, first, lanes)
                for more in chains[1:]:
                    e.write(more, place, m.const(0, "int32"), lanes)

    def _multiply(self, chains: list[t.Buffer], starts: list[t.Expr], base: t.Expr, block: t.Expr) -> None:
        e = self.e
        weights = e.share(t.Add(base, t.Mul(block, e.i64(self.steps * self.tile.panel))))
        places = [e.share(t.Add(start, t.Mul(block, e.i64(self.quads)))) for start in starts]
        each = 8 // self.how.bits  # words of a row for one of the weights
        unrolled = min(self.steps, _UNROLLED)
        with e.loop("s", self.steps // unrolled) as s:
            first = e.share(t.Mul(s, e.i64(unrolled)))
            for step in range(unrolled):
                k = t.Add(first, e.i64(step))
                self._step_of(chains, [t.Add(p, t.Mul(k, e.i64(each))) for p in places],
                              t.Add(weights, t.Mul(k, e.i64(self.tile.panel))))

    def _step_of(self, chains: list[t.Buffer], places: list[t.Expr], at: t.Expr) -> None:
        """A word of weights for each column, of 4 or 8 elements."""
        e, m, lanes = self.e, self.e.math, self.tile.lanes
        if self.span.start == 0:
            self._ask(self.right, t.Add(at, e.i64(_NEAR // 4)))
        words = [m.share(e.read(self.right, "int32", t.Add(at, e.i64(v * lanes)), lanes)) for v in self.span]
        parts = [words]
        if self.how.bits == 4:
            mask = m.const(_NIBBLES, "int32")
            parts = [[m.band(w, mask) for w in words], [m.band(m.shr(w, m.const(4, "int32")), mask) for w in words]]
        for half, part in enumerate(parts):
            sums = chains[half % len(chains)]
            for r, place in enumerate(places):
                left = m.widen(e.read(self.left, "int32", t.Add(place, e.i64(half))), lanes)
                for k in range(len(self.span)):
                    spot = (r * len(self.span) + k) * lanes
                    dot = self.dots.dot(e.read(sums, "int32", spot, lanes).expr, part[k].expr, left)
                    e.write(sums, spot, V(dot, "int32", lanes), lanes)

    def _ask(self, buffer: t.Buffer, at: t.Expr) -> None:
        """For what a row of the panel holds from `at` on."""
        for line in range(-(-self.vectors * self.tile.lanes // 16)):
            self.e.prefetch(buffer, t.Add(at, self.e.i64(line * 16)))
