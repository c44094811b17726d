"""3x3 convolution with stride 1 by Winograd's F(2x2, 3x3): 16 products for four results instead of 36; on request
F(4x4, 3x3), 36 for 16 instead of 144, whose rounding errors are larger.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, section 4. A unit of work is some tiles of
2x2 results: their 4x4 source elements are transformed once, [point][tile][channel]; then for each panel of filters
come as many matrix products as points over the channels and the transform back, which ends in the epilogue. Weights are
transformed when they are laid out.
"""

from __future__ import annotations

from contextlib import nullcontext

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.halves import folded, spread
from tilegraph.codegen.conv.results import STREAMED, Results
from tilegraph.codegen.conv.tiles import vectors_for, widest
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.conv import ConvSpace, algorithm, half_vectors
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters
from tilegraph.spec.winograd import FAR, NEAR, PRODUCT, SUM

_VALUES = 1 << 16  # transformed values of a unit, 256 KB: what virtual machines leave of a level 2 cache
CHUNK = 64  # channels that are summed by themselves: the rounding error grows with the length of a sum
_FEW_UNITS = 4  # below it the panels are divided between units too
_ODD_UNITS = 16  # and below this where two threads could not share them evenly


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, for which `ops.conv.algorithm` says winograd, as the function `name`."""
    return _Winograd(space, vector_bits).generate(name)


class _Winograd(Results):
    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        assert space.weights_slot is not None
        self.source = self.e.input(space.source_slot, "float")
        self.weights = self.e.input(space.weights_slot, "float")
        self.kind = algorithm(space)
        self.m = 4 if self.kind == "winograd4" else 2  # results of a tile in a line
        self.edge = self.m + 2
        self.points = self.edge ** 2
        rows, columns = (axis.out.ceildiv(self.m) for axis in space.axes)
        self.columns, self.tiles = columns, rows * columns
        total = self.tiles.as_int()
        self.vectors = space.schedule.vectors or vectors_for(None, space.blocks, vector_bits)
        self.halves = half_vectors(space)
        if self.halves:
            self.vectors = space.blocks
        self.width = widest(self.halves or self.vectors, vector_bits)
        if total is not None:
            self.width = min(range(min(self.width, total), max(self.width * 3 // 4, 1) - 1, -1),
                             key=lambda w: (-total % w, -w), default=total)
        self.blocks = -(-space.depth // self.lanes)
        self.pitch = (self.blocks + 1) * self.lanes  # no power of two
        size = max(_VALUES // (self.points * self.pitch) // self.width, 1) * self.width
        self.size = size if total is None else min(size, total)
        self.parts = self.tiles.ceildiv(self.size)
        if total is not None:
            even = -(-total // self.parts.value)
            self.size = min(-(-even // self.width) * self.width, total)
            self.parts = self.tiles.ceildiv(self.size)
        self.panels = -(-space.blocks // self.vectors)
        self.groups = self._groups((self.parts * space.n).as_int())
        self.panel_size = self.vectors * self.lanes
        # Weights of one step of the channels, and of all; the next point follows in memory.
        self.pair = 2 if self.halves else 1
        self.step_size = (self.halves or self.vectors) * self.lanes
        self.point_size = size = space.depth // self.pair * self.step_size
        self.ahead = size if 4 * size * self.points * self.panels > STREAMED else 0

    def _groups(self, units: int | None) -> int:
        """How many units share the panels of some tiles, each with a transform of its own."""
        if units is None or units >= _ODD_UNITS or self.space.blocks < 8:
            return 1
        wanted = (4, 3, 2) if units < _FEW_UNITS else (2,) if units % 2 else ()
        return next((g for g in wanted if self.panels % g == 0), 1)

    def generate(self, name: str) -> Generated:
        e, space = self.e, self.space
        values, sums = (self.points * self.size * wide for wide in (self.pitch, self.panel_size))
        # One buffer: the kernel's scratch is one pointer.
        self.scratch = e.flat("scratch", "float32")
        self.sums_at = values
        panels = self.panels // self.groups
        with e.loop("u", t.Sub(e.end, e.begin), e.begin) as u:
            group = e.share(t.Rem(u, e.i64(self.groups)))
            rest = e.share(t.Div(u, e.i64(self.groups)))
            if space.batch is not None:
                e.loops[space.batch] = e.share(t.Div(rest, e.dim(self.parts)))
            first = e.share(t.Mul(t.Rem(rest, e.dim(self.parts)), e.i64(self.size)))
            self.first = first
            self.count = e.share(t.Min(t.Sub(e.dim(self.tiles), first), e.i64(self.size)))
            self._transform_source()
            with e.loop("p", panels) as p:
                self.panel = e.share(t.Add(t.Mul(group, e.i64(panels)), p))
                rest_of = space.blocks % self.vectors
                if rest_of == 0:
                    self._panel(self.vectors)
                else:
                    with e.block() as whole:
                        self._panel(self.vectors)
                    with e.block() as last:
                        self._panel(rest_of)
                    e.stmts.append(t.IfThenElse(t.LT(self.panel, e.i64(self.panels - 1)), t.sequence(whole),
                                                t.sequence(last)))
        assert space.weights_slot is not None
        filters = ((space.weights_slot, Filters(self.kind + ("-pairs" if self.halves else ""),
                                                self.step_size // self.pair)),)
        work = Dim.of(self.size * self.points * (space.depth * self.vectors * panels + 8 * self.blocks))
        return self.kernel(name, [self.scratch], self.parts * space.n * self.groups, work,
                           Dim.of((values + sums) * 4), filters)

    # -- the source -------------------------------------------------------------------------------------------
    def _transform_source(self) -> None:
        e, space = self.e, self.space
        outer, inner = space.channels
        rows, columns = space.axes
        with e.loop("t", self.count) as tile:
            number = e.share(t.Add(self.first, tile))
            y = e.share(t.Sub(t.Mul(t.Div(number, e.dim(self.columns)), e.i64(self.m)), e.i64(rows.before)))
            x = e.share(t.Sub(t.Mul(t.Rem(number, e.dim(self.columns)), e.i64(self.m)), e.i64(columns.before)))
            row_step = e.dim(space.source.coef(space.inside[0]))
            step = space.source.coef(space.inside[1]).value  # 0 where a line has one element: so has `base`
            at = {outer: e.i64(0), inner: e.i64(0), space.inside[0]: y, space.inside[1]: x}
            base = e.share(e.index(space.source, at))
            fits = [t.And(t.LE(e.i64(0), place), t.LE(t.Add(place, e.i64(self.edge)), e.dim(axis.size)))
                    for place, axis in ((y, rows), (x, columns))]
            put = e.share(t.Mul(tile, e.i64(self.pitch)))

            def place_of(b: t.Expr, i: int, j: int) -> t.Expr:
                along = t.Add(t.Mul(e.i64(i), row_step), e.i64(j * step))
                return t.Add(t.Add(base, t.Mul(b, e.dim(space.source.coef(outer)))), along)

            with e.block() as whole, e.loop("b", self.blocks) as b:
                read = [[e.math.share(e.read(self.source, "float32", place_of(b, i, j), self.lanes))
                         for j in range(self.edge)] for i in range(self.edge)]
                read = self._scaled(b, read)
                self._put(self._valid(b, read), t.Add(put, t.Mul(b, e.i64(self.lanes))))
            with e.block() as border, e.loop("b", self.blocks) as b:
                kept = e.local("d", "float32", self.points * self.lanes)
                for k in range(self.points):
                    e.write(kept, k * self.lanes, e.f32(0.0), self.lanes)
                for i in range(self.edge):
                    with e.when(self._exists(t.Add(y, e.i64(i)), rows.size)):
                        for j in range(self.edge):
                            with e.when(self._exists(t.Add(x, e.i64(j)), columns.size)):
                                value = e.read(self.source, "float32", place_of(b, i, j), self.lanes)
                                e.write(kept, (i * self.edge + j) * self.lanes, value, self.lanes)
                read = [[e.math.share(e.read(kept, "float32", (i * self.edge + j) * self.lanes, self.lanes))
                         for j in range(self.edge)] for i in range(self.edge)]
                read = self._scaled(b, read)
                self._put(self._valid(b, read), t.Add(put, t.Mul(b, e.i64(self.lanes))))
            e.stmts.append(t.IfThenElse(t.And(*fits), t.sequence(whole), t.sequence(border)))

    def _exists(self, place: t.Expr, size: Dim) -> t.Expr:
        return t.And(t.LE(self.e.i64(0), place), t.LT(place, self.e.dim(size)))

    def _scaled(self, b: t.Expr, read: list[list[V]]) -> list[list[V]]:
        """Times the factors of the channels of block b."""
        e, space = self.e, self.space
        if space.factor is None:
            return read
        outer, inner = space.channels
        e.loops[outer], e.loops[inner] = b, e.i64(0)
        factor = e.value(space.factor, inner, self.lanes, {})
        return [[e.math.share(e.math.mul(v, factor)) for v in line] for line in read]

    def _valid(self, b: t.Expr, read: list[list[V]]) -> list[list[V]]:
        """Zeros in lanes that are no channels, whatever the source has there."""
        depth, lanes = self.space.depth, self.lanes
        if depth % lanes == 0:
            return read
        e = self.e
        number = t.Ramp(t.int_imm("int32", 0), t.int_imm("int32", 1), lanes)
        valid = t.Cast("int32", t.Sub(e.i64(depth), t.Mul(b, e.i64(lanes))))
        mask = e.math.share(V(t.LT(number, t.Broadcast(valid, lanes)), "bool", lanes))
        return [[e.math.select(mask, v, e.f32(0.0)) for v in line] for line in read]

    def _put(self, d: list[list[V]], place: t.Expr) -> None:
        """B^T d B."""
        edge, along = range(self.edge), self._source_line
        columns = [along([d[i][j] for i in edge]) for j in edge]
        place = self.e.share(place)
        for i in edge:
            for j, value in enumerate(along([columns[k][i] for k in edge])):
                offset = (i * self.edge + j) * self.size * self.pitch
                self.e.write(self.scratch, t.Add(place, self.e.i64(offset)), value, self.lanes)

    # -- the products -----------------------------------------------------------------------------------------
    def _panel(self, vectors: int) -> None:
        e = self.e
        self.now = vectors
        total = self.tiles.as_int()
        with e.loop("k", self.points) as point:
            values = e.share(t.Mul(point, e.i64(self.size * self.pitch)))
            sums = e.share(t.Add(t.Mul(point, e.i64(self.size * self.panel_size)), e.i64(self.sums_at)))
            number = t.Add(t.Mul(self.panel, e.i64(self.points)), point)
            weight = e.share(t.Mul(number, e.i64(self.point_size)))
            with e.loop("g", t.Div(self.count, e.i64(self.width))) as g:
                self._products(e.share(t.Mul(g, e.i64(self.width))), self.width, values, sums, weight)
            done = e.share(t.Mul(t.Div(self.count, e.i64(self.width)), e.i64(self.width)))
            if total is not None:
                for size in sorted({total % self.size % self.width, self.size % self.width} - {0}):
                    with e.when(t.EQ(t.Sub(self.count, done), e.i64(size))):
                        self._products(done, size, values, sums, weight)
            else:
                # Three tiles take as long one by one; more fill up a group, whose other results nobody reads.
                left = e.share(t.Sub(self.count, done))
                with e.block() as many:
                    self._products(done, self.width, values, sums, weight)
                with e.block() as few, e.loop("g", left) as g:
                    self._products(e.share(t.Add(done, g)), 1, values, sums, weight)
                e.stmts.append(t.IfThenElse(t.LT(left, e.i64(4)), t.sequence(few), t.sequence(many)))
        with e.loop("t", self.count) as tile:
            self._results(tile)

    def _products(self, first: t.Expr, width: int, values: t.Expr, sums: t.Expr, weight: t.Expr) -> None:
        """`width` tiles from `first` at one point, all channels; long sums in parts, see CHUNK."""
        e = self.e
        base = e.share(t.Add(values, t.Mul(first, e.i64(self.pitch))))
        put = e.share(t.Add(sums, t.Mul(first, e.i64(self.panel_size))))
        depth = self.space.depth
        chunks = -(-depth // CHUNK)
        size = -(-depth // (chunks * self.pair)) * self.pair
        self._chunk(width, base, put, weight, size, False)
        if chunks > 1:
            with e.loop("z", chunks - 1) as z:
                start = e.share(t.Mul(t.Add(z, e.i64(1)), e.i64(size)))
                length: t.Expr | int = size
                if depth % size:
                    length = e.share(t.Min(t.Sub(e.i64(depth), start), e.i64(size)))
                self._chunk(width, e.share(t.Add(base, start)), put,
                            e.share(t.Add(weight, t.Mul(t.Div(start, e.i64(self.pair)), e.i64(self.step_size)))),
                            length, True)

    def _chunk(self, width: int, base: t.Expr, put: t.Expr, weight: t.Expr, length: t.Expr | int, add: bool) -> None:
        e = self.e
        count = self.halves or self.now
        acc = e.local("acc", "float32", width * count * self.lanes)
        for k in range(width * count):
            e.write(acc, k * self.lanes, e.f32(0.0), self.lanes)
        if self.halves:
            length = length // 2 if isinstance(length, int) else e.share(t.Div(length, e.i64(2)))
        with e.loop("c", length) as c:
            at = e.share(t.Add(weight, t.Mul(c, e.i64(self.step_size))))
            right = self.weights_at(self.weights, at, self.ahead, count)
            for i in range(width):
                place_of = t.Add(t.Add(base, e.i64(i * self.pitch)), t.Mul(c, e.i64(self.pair)) if self.halves else c)
                wide = spread(e, self.scratch, place_of, self.lanes, self.halves > 0)
                for j, one in enumerate(right):
                    place = (i * count + j) * self.lanes
                    old = e.read(acc, "float32", place, self.lanes).expr
                    e.write(acc, place, self.fma(wide, one, old), self.lanes)
        if self.halves:
            acc = folded(e, acc, width, self.halves, self.lanes)
        for i in range(width):
            for j in range(self.now):
                value = e.read(acc, "float32", (i * self.now + j) * self.lanes, self.lanes)
                place = t.Add(put, e.i64(i * self.panel_size + j * self.lanes))
                if add:
                    value = e.math.add(value, e.read(self.scratch, "float32", place, self.lanes))
                e.write(self.scratch, place, value, self.lanes)

    # -- the results ------------------------------------------------------------------------------------------
    def _results(self, tile: t.Expr) -> None:
        """A^T m A, and what follows."""
        e, space, m = self.e, self.space, self.e.math
        number = e.share(t.Add(self.first, tile))
        y = e.share(t.Mul(t.Div(number, e.dim(self.columns)), e.i64(self.m)))
        x = e.share(t.Mul(t.Rem(number, e.dim(self.columns)), e.i64(self.m)))
        base = e.share(t.Add(t.Mul(tile, e.i64(self.panel_size)), e.i64(self.sums_at)))
        edge, along = range(self.edge), self._result_line
        made = e.local("made", "float32", self.m ** 2 * self.now * self.lanes)
        for j in range(self.now):
            values = [[m.share(e.read(self.scratch, "float32", t.Add(base, e.i64(
                (i * self.edge + k) * self.size * self.panel_size + j * self.lanes)), self.lanes)) for k in edge]
                for i in edge]
            columns = [along([values[i][k] for i in edge]) for k in edge]
            for i in range(self.m):
                for k, value in enumerate(along([columns[c][i] for c in edge])):
                    e.write(made, ((i * self.m + k) * self.now + j) * self.lanes, value, self.lanes)
        for i in range(self.m):
            with e.when(self._exists(t.Add(y, e.i64(i)), space.axes[0].out)) if i else nullcontext():
                self.y = t.Add(y, e.i64(i))
                self.set_loop(space.at[0], self.y)
                for k in range(self.m):
                    with e.when(self._exists(t.Add(x, e.i64(k)), space.axes[1].out)) if k else nullcontext():
                        self.store(made, e.share(t.Add(x, e.i64(k))), (i * self.m + k) * self.now * self.lanes)

    # -- one line of the transforms, see `spec.winograd` ------------------------------------------------------------
    def _source_line(self, d: list[V]) -> list[V]:
        """B^T d."""
        m = self.e.math
        if self.m == 2:
            return [m.sub(d[0], d[2]), m.add(d[1], d[2]), m.sub(d[2], d[1]), m.sub(d[1], d[3])]
        near, far = (self._odd_even(d, here, other) for here, other in ((NEAR, FAR), (FAR, NEAR)))
        ends = [m.fma(d[k], self.e.f32(PRODUCT), m.fma(d[k + 2], self.e.f32(-SUM), d[k + 4])) for k in (0, 1)]
        return [ends[0], *near, *far, ends[1]]

    def _odd_even(self, d: list[V], here: float, other: float) -> tuple[V, V]:
        """At the points `here` and -`here`."""
        m, square = self.e.math, self.e.f32(-other ** 2)
        even = m.fma(d[2], square, d[4])
        odd = m.mul(m.fma(d[1], square, d[3]), self.e.f32(here))
        return m.add(even, odd), m.sub(even, odd)

    def _result_line(self, a: list[V]) -> list[V]:
        """A^T a."""
        m = self.e.math
        if self.m == 2:
            return [m.add(m.add(a[0], a[1]), a[2]), m.sub(m.sub(a[1], a[2]), a[3])]
        (near, odd_near), (far, odd_far) = ((m.add(a[k], a[k + 1]), m.sub(a[k], a[k + 1])) for k in (1, 3))

        def of(power: int, x: V, y: V) -> V:
            return m.fma(x, self.e.f32(NEAR ** power), m.mul(y, self.e.f32(FAR ** power)))

        return [m.add(a[0], m.add(near, far)), of(1, odd_near, odd_far), of(2, near, far),
                m.add(of(3, odd_near, odd_far), a[5])]
