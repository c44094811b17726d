"""What all window kernels share: units of work, rows, and the tiles of a line with what the padding leaves of them.

A unit of work is a batch element, a few rows, and some blocks of channels. A line of static extent is cut into tiles
whose taps are known to read an element or not, so padding costs nothing and is never stored. A line whose extent only
the run knows has such tiles at its borders, too, where results may be made twice: the last tile is moved back to end
with the line. Otherwise, and in lines shorter than a tile, results whose windows reach outside are made one by one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.results import Results
from tilegraph.codegen.conv.tiles import MAX_TAPS, Borders, all_taps, inside, line_borders, pieces, split
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.tir_math import V
from tilegraph.ops.conv import Axis, ConvSpace
from tilegraph.ops.index import Var
from tilegraph.spec.dims import Dim
from tilegraph.spec.filters import Filters

CHAINS = 8  # sums that are built at the same time
PIXELS = 256  # results of a unit, so that its sums and its part of the source stay in the caches
SCALED_PIXELS = 512  # where a unit makes its weights anew

Taps = tuple[tuple[int, ...], ...]


class Sliding(Results):
    """Walks over units, rows and tiles; a subclass sums."""

    width: int  # results of a line that are summed at once
    together = 1  # rows of a tile
    unit_pixels = PIXELS  # of an image with two spatial dims
    repeatable = False  # a result may be made twice, and whole tiles at the borders are worth their code
    streaming = False  # the parts of an image follow each other for one panel, then for the next

    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.memory: list[t.Buffer] = []
        self.scratch = Dim.of(0)
        self.row = space.axes[0] if len(space.axes) == 2 else None
        self.line = space.axes[-1]
        taps = self.line.kernel.as_int()
        self.long = taps is None or taps > MAX_TAPS

    def at_once(self, width: int, rows: int = 1) -> None:
        """Sums up to `width` results of each of `rows` lines at once, of so many blocks that `CHAINS` sums are built
        together."""
        self.width = width
        length = self.line.out.as_int()
        usual = 1 if self.long else rows * (width if length is None else split(length, width)[0])
        self.vectors = min(max(1, -(-CHAINS // usual)), CHAINS // 2, self.space.blocks)

    def begin(self, width: int, first: float = 0.0) -> t.Buffer:
        """Sums of `width` results of the unit's blocks, `first` each."""
        e = self.e
        sums = e.local("acc", "float32", width * self.now * self.lanes)
        for k in range(width * self.now):
            e.write(sums, k * self.lanes, e.f32(first), self.lanes)
        return sums

    # -- units ------------------------------------------------------------------------------------------------
    def run(self, name: str, filters: tuple[tuple[int, Filters], ...], work: int) -> Generated:
        """`work`: vector instructions for each result of a unit."""
        e, space = self.e, self.space
        panels = -(-space.blocks // self.vectors)
        rows, line, parts, pixels = self._parts()
        self.pixels = pixels
        with e.loop("u", t.Sub(e.end, e.begin), e.begin) as u:
            of_panel = t.Div(u, e.dim(parts)) if self.streaming else u
            of_part = u if self.streaming else t.Div(u, e.i64(panels))
            p = e.share(t.Rem(of_panel, e.i64(panels))) if panels > 1 else e.i64(0)
            part = e.share(t.Rem(of_part, e.dim(parts))) if parts != 1 else e.i64(0)
            if space.batch is not None:
                e.loops[space.batch] = e.share(t.Div(t.Div(u, e.i64(panels)), e.dim(parts)))
            full = space.blocks // self.vectors
            if space.blocks % self.vectors == 0:
                self._unit(p, part, self.vectors, rows, line)
            elif full == 0:
                self._unit(p, part, space.blocks, rows, line)
            else:
                with e.block() as whole:
                    self._unit(p, part, self.vectors, rows, line)
                with e.block() as last:
                    self._unit(p, part, space.blocks % self.vectors, rows, line)
                e.stmts.append(t.IfThenElse(t.LT(p, e.i64(full)), t.sequence(whole), t.sequence(last)))
        return self.kernel(name, self.memory, space.n * parts * panels, pixels * work, self.scratch, filters)

    def _parts(self) -> tuple[int, int, Dim, Dim]:
        """(rows of a unit, results of a line of a unit or 0 for all, units of an image, results of a unit)."""
        if self.row is None:
            if not self.line.plain:
                return 1, 0, Dim.of(1), self.line.out
            pixels = PIXELS if self.space.factor is None else SCALED_PIXELS
            size = max(pixels // self.width, 1) * self.width
            static = self.line.out.as_int()
            if static is not None:
                parts = self.shared(1 if static <= size + size // 2 else round(static / size), static)
                if parts == 1:
                    return 1, 0, Dim.of(1), self.line.out
                size = -(-static // (parts * self.width)) * self.width
            return 1, size, self.line.out.ceildiv(size), Dim.of(size)
        height, length = self.row.out.as_int(), self.line.out.as_int()
        rows = 4 if length is None else max(1, -(-self.unit_pixels // length))
        if height is not None:
            rows = -(-height // self.shared(max(1, round(height / rows)), height))
        rows = -(-rows // self.together) * self.together
        return rows, 0, self.row.out.ceildiv(rows), self.line.out * rows

    def shared(self, parts: int, length: int) -> int:
        """How many parts an image whose `length` would be cut into `parts` is cut into, for threads to share."""
        return parts

    def _unit(self, p: t.Expr, part: t.Expr, vectors: int, rows: int, line: int) -> None:
        e, space = self.e, self.space
        self.panel, self.now = p, vectors
        first = e.share(t.Mul(part, e.i64(rows if self.row else line)))
        self.first_pixel = e.i64(0) if self.row else first

        def walk() -> None:
            if self.row is None:
                self.set_loop(space.at[-1], e.i64(0))
                self.first_row = self.y = e.i64(0)
                self.taps_of_row()
                if line:
                    count = e.share(t.Min(t.Sub(e.dim(self.line.out), first), e.i64(line)))
                    self._plain(first, count, line)
                else:
                    self.whole_line()
                return
            self.first_row = first
            self.walk_rows(first, e.share(t.Min(t.Sub(e.dim(self.row.out), first), e.i64(rows))))

        self.unit(walk)

    def walk_rows(self, first: t.Expr, count: t.Expr) -> None:
        """`count` rows of the unit, from `first` on."""
        with self.e.loop("y", count, first) as y:
            self.one_row(y)

    def one_row(self, y: t.Expr) -> None:
        self.y = y
        self.set_loop(self.space.at[0], y)
        with self.on_axis(0, y):
            self.taps_of_row()
            self.whole_line()
        self.row_done()

    def row_done(self) -> None:
        """Called behind the tiles of a row."""

    def unit(self, walk: Callable[[], None]) -> None:
        """Walks over the tiles of the unit, once or more."""
        walk()

    # -- rows -------------------------------------------------------------------------------------------------
    def taps_of_row(self) -> None:
        """`low` and `high`: which taps of the column of a window lie in the source at row y; `high` None: one tap."""
        e, axis = self.e, self.row
        self.low, self.high = e.i64(0), e.i64(1)
        self.safe_row = True
        if axis is None:
            return
        if axis.kernel == 1 and inside(axis):
            return
        # The bounds are computed even where all taps are inside: LLVM would unroll a loop of known length, find that
        # neighbouring taps read the same elements, and keep them in registers that it does not have.
        self.safe_row = False
        self.low, self.high = self.reach(axis, self.y)

    def reach(self, axis: Axis, place: t.Expr) -> tuple[t.Expr, t.Expr]:
        """[low, high) of the taps of result `place` that read an element."""
        e = self.e
        origin = e.share(t.Sub(e.i64(axis.before), t.Mul(place, e.i64(axis.stride))))
        step = axis.dilation

        def taps(elements: t.Expr) -> t.Expr:
            rounded = t.Div(t.Add(elements, e.i64(step - 1)), e.i64(step)) if step > 1 else elements
            return t.Min(t.Max(rounded, e.i64(0)), e.dim(axis.kernel))

        return e.share(taps(origin)), e.share(taps(t.Add(origin, e.dim(axis.size))))

    # -- lines ------------------------------------------------------------------------------------------------
    def whole_line(self) -> None:
        e, axis = self.e, self.line
        length, size = axis.out.as_int(), axis.size.as_int()
        if self.long:
            with e.loop("x", e.dim(axis.out)) as x:
                self._edge(x)
        elif length is not None and size is not None:
            for piece in pieces(axis, split(length, self.width)):
                if piece.count == 1:
                    self._at(e.i64(piece.start), piece.width, piece.taps)
                else:
                    with e.loop("x", piece.count) as x:
                        at = e.share(t.Add(t.Mul(x, e.i64(piece.width)), e.i64(piece.start)))
                        self._at(at, piece.width, piece.taps)
        elif axis.plain:
            self._plain(e.i64(0), e.dim(axis.out), 0)
        else:
            self._unknown_line()

    def _plain(self, first: t.Expr, count: t.Expr, whole: int) -> None:
        """`count` results from `first`, all inside; `whole`: `count` in all units but the last of an image."""
        e, width = self.e, self.width
        taps = all_taps(self.line, width)
        with e.loop("x", t.Div(count, e.i64(width))) as x:
            self._at(e.share(t.Add(first, t.Mul(x, e.i64(width)))), width, taps)
        total = self.line.out.as_int() if self.line.plain else None
        if total is not None and whole:
            rest = total % whole % width
            if rest:
                with e.when(t.NE(t.Rem(count, e.i64(width)), e.i64(0))):
                    self._at(e.share(t.Add(first, t.Sub(count, e.i64(rest)))), rest, all_taps(self.line, rest))
            return
        self._rest(first, e.share(t.Mul(t.Div(count, e.i64(width)), e.i64(width))), count)

    def _rest(self, first: t.Expr, done: t.Expr, count: t.Expr) -> None:
        """Of `count` results from `first`, fewer than a tile behind the first `done`: tiles of powers of two."""
        e = self.e
        left = e.share(t.Sub(count, done))
        part = 1 << (self.width.bit_length() - 1)
        while part:
            if part < self.width:
                with e.when(t.NE(t.Rem(t.Div(left, e.i64(part)), e.i64(2)), e.i64(0))):
                    before = t.Mul(t.Div(left, e.i64(2 * part)), e.i64(2 * part))
                    self._at(e.share(t.Add(t.Add(first, done), before)), part, all_taps(self.line, part))
            part //= 2

    def _unknown_line(self) -> None:
        e, axis = self.e, self.line
        out, one = e.share(e.dim(axis.out)), e.i64(axis.stride)
        lead = t.Div(t.Add(e.i64(axis.before), e.i64(axis.stride - 1)), one)
        low = e.share(t.Min(lead, out))
        # The last window that ends inside starts at size - reach.
        reach = (axis.kernel - 1) * axis.dilation - axis.before
        last = t.Sub(e.dim(axis.size), t.Add(e.dim(reach), e.i64(1)))
        full = t.Select(t.LT(last, e.i64(0)), e.i64(0), t.Add(t.Div(last, one), e.i64(1)))
        high = e.share(t.Max(t.Min(full, out), low))
        count = e.share(t.Sub(high, low))
        borders = line_borders(axis, self.width) if self.repeatable else None

        def one_by_one(inside: Callable[[], None]) -> None:
            with e.loop("x", low) as x:
                self._edge(x)
            inside()
            with e.loop("x", t.Sub(out, high), high) as x:
                self._edge(x)

        if borders is None:
            one_by_one(lambda: self._plain(low, count, 0))
            return
        with e.block() as long:
            self._overlapping(out, high, borders)
        with e.block() as short:
            one_by_one(lambda: self._rest(low, e.i64(0), count))
        e.stmts.append(t.IfThenElse(t.LT(count, e.i64(self.width)), t.sequence(short), t.sequence(long)))

    def _overlapping(self, out: t.Expr, high: t.Expr, borders: Borders) -> None:
        """A line with at least a tile of windows inside: whole tiles only, of which the last ones are moved back."""
        e, width = self.e, self.width
        if borders.left is not None:
            self._at(e.i64(0), width, borders.left)
        first = width if borders.left is not None else 0
        stop = high if borders.right is None else t.Sub(out, e.i64(width))
        tiles = t.Div(t.Max(t.Add(t.Sub(stop, e.i64(first)), e.i64(width - 1)), e.i64(0)), e.i64(width))
        last = e.share(t.Sub(high, e.i64(width)))
        with e.loop("x", e.share(tiles)) as x:
            at = t.Min(t.Add(t.Mul(x, e.i64(width)), e.i64(first)), last)
            self._at(e.share(at), width, all_taps(self.line, width))
        if borders.right is not None:
            self._at(e.share(stop), width, borders.right)
        elif not borders.closed:
            with e.loop("x", t.Sub(out, high), high) as x:
                self._edge(x)

    def _at(self, x: t.Expr, width: int, taps: Taps) -> None:
        self.x = x
        self.tile(width, taps)

    def _edge(self, x: t.Expr) -> None:
        self.x = x
        low, high = self.reach(self.line, x)
        self.edge(low, high)

    @abstractmethod
    def tile(self, width: int, taps: Taps) -> None:
        """Results x .. x+width-1 of the line."""

    @abstractmethod
    def edge(self, low: t.Expr, high: t.Expr) -> None:
        """Result x, of which taps low .. high-1 read an element."""

    # -- values -----------------------------------------------------------------------------------------------
    def source_at(self, channel: dict[Var, t.Expr]) -> t.Expr:
        """The offset of the first tap of result (y, x), which may lie outside."""
        e, space = self.e, self.space
        at = dict(channel)
        if self.row is not None:
            at[space.inside[0]] = t.Sub(t.Mul(self.y, e.i64(self.row.stride)), e.i64(self.row.before))
        at[space.inside[-1]] = t.Sub(t.Mul(self.x, e.i64(self.line.stride)), e.i64(self.line.before))
        return e.share(e.index(space.source, at))

    def of_channels(self, value: V, block: t.Expr) -> V:
        """`value`, zero in the lanes of `block` past the channels: they read whatever is there."""
        e, lanes = self.e, self.lanes
        if self.space.filters % lanes == 0:
            return value
        number = t.Ramp(t.int_imm("int32", 0), t.int_imm("int32", 1), lanes)
        valid = t.Cast("int32", t.Sub(e.i64(self.space.filters), t.Mul(block, e.i64(lanes))))
        return e.math.select(V(t.LT(number, t.Broadcast(valid, lanes)), "bool", lanes), value, e.f32(0.0))

    @property
    def row_step(self) -> t.Expr:
        """From one tap to the next in the column of a window."""
        if self.row is None:
            return self.e.i64(0)
        return self.e.dim(self.space.source.coef(self.space.inside[0]) * self.row.dilation)

    @property
    def element(self) -> int:
        """From one element of a line to the next."""
        return self.space.source.coef(self.space.inside[-1]).value
