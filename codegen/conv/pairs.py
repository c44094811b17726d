"""Windows over each channel by itself with stride 1, for the results of two neighbouring rows at once.

The rows of the source that both read are loaded once: of a 3x3 window four rows for two. One row of results takes the
time of its products and that of its memory one after the other, because the loads keep the level 1 cache from being
filled at the same time; two rows leave it room.
"""

from __future__ import annotations

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.conv.sliding import Taps
from tilegraph.codegen.conv.taps import ChannelTaps
from tilegraph.codegen.generated import Generated
from tilegraph.ops.conv import ConvSpace

_MAX_KERNEL = 3  # from 4 rows on the products take longer than the loads anyway
_SHORT_LINE = 14


def fits(space: ConvSpace, vector_bits: int) -> bool:
    """Whether neighbouring rows of windows share rows of the source, and registers suffice."""
    if vector_bits < 512 or len(space.axes) < 2:
        return False
    rows, line = space.axes[0], space.axes[-1]
    kernels = [axis.kernel.as_int() for axis in (rows, line)]
    small = all(k is not None and 2 <= k <= _MAX_KERNEL for k in kernels)
    return small and rows.stride == rows.dilation == 1 and rows.out != 1


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space`, which `fits`, as the function `name`."""
    return _Pairs(space, vector_bits).generate(name)


class _Pairs(ChannelTaps):
    together = 2
    unit_pixels = 1024

    def __init__(self, space: ConvSpace, vector_bits: int) -> None:
        super().__init__(space, vector_bits)
        self.pair: list[tuple[t.Expr, t.Expr, t.Expr]] = []  # (y, low, high) of the rows that are emitted together

    def widest_tile(self) -> int:
        """Wide tiles of long lines ask for more of memory at once than arrives while they are computed."""
        length = self.line.out.as_int()
        return 7 if length is not None and length <= _SHORT_LINE else 4

    # -- rows -------------------------------------------------------------------------------------------------
    def walk_rows(self, first: t.Expr, count: t.Expr) -> None:
        e = self.e
        with e.loop("y", t.Div(count, e.i64(2))) as half:
            self.pair = []
            for k in range(2):
                self.y = e.share(t.Add(first, t.Add(t.Mul(half, e.i64(2)), e.i64(k))))
                self.taps_of_row()
                self.pair.append((self.y, self.low, self.high))
            self._enter(0)
            self.whole_line()
        self.pair = []
        assert self.row is not None
        height = self.row.out.as_int()
        if height is None or height % 2:
            with e.when(t.NE(t.Rem(count, e.i64(2)), e.i64(0))):
                self.one_row(e.share(t.Sub(t.Add(first, count), e.i64(1))))

    def _enter(self, k: int) -> None:
        self.y, self.low, self.high = self.pair[k]
        self.set_loop(self.space.at[0], self.y)

    # -- tiles ------------------------------------------------------------------------------------------------
    def tile(self, width: int, taps: Taps) -> None:
        if not self.pair:
            super().tile(width, taps)
            return
        e, row = self.e, self.row
        assert row is not None
        self._enter(0)
        sums = self.start(2 * width)
        bases, weights = self.places()
        kernel = row.kernel.value
        # Bounds that are known only to the run keep the rows apart: LLVM would load several and run out of registers.
        (_, low, high), (_, low_below, high_below) = self.pair

        def source_row(q: t.Expr, taps_of: tuple[int, ...]) -> None:
            here = [e.share(t.Add(base, t.Mul(q, self.row_step))) for base in bases]
            at = [e.share(t.Add(w, t.Mul(q, e.i64(len(taps) * self.lanes)))) for w in weights]
            self._source_row(sums, here, at, taps, width, taps_of)

        with e.when(t.And(t.LE(low, e.i64(0)), t.LT(e.i64(0), high))):
            source_row(e.i64(0), (0,))
        first = e.share(t.Max(low, e.i64(1)))
        with e.loop("r", t.Max(t.Sub(high, first), e.i64(0)), first) as q:
            source_row(q, (0, 1))
        with e.when(t.And(t.LT(low_below, e.i64(kernel)), t.LE(e.i64(kernel), high_below))):
            source_row(e.i64(kernel), (1,))
        for k in range(2):
            self._enter(k)
            self.divide(sums, self.counted(taps, width), k * width)
            self.epilogue(sums, width, k * width * self.now * self.lanes)

    def edge(self, low: t.Expr, high: t.Expr) -> None:
        if not self.pair:
            super().edge(low, high)
            return
        for k in range(len(self.pair)):
            self._enter(k)
            super().edge(low, high)

    def _source_row(self, sums: t.Buffer, bases: list[t.Expr], weights: list[t.Expr], taps: Taps, width: int,
                    readers: tuple[int, ...]) -> None:
        """What a row of the source counts in the results of the rows `readers` (0, 1 or both): for the first one it is
        that of the tap whose weights lie at `weights`, for the second that of the one before."""
        e, line = self.e, self.line
        places: dict[int, list[tuple[int, int]]] = {}  # element of the row -> (result, tap)
        for k, reads in enumerate(taps):
            for i in reads:
                places.setdefault(i * line.stride + k * line.dilation, []).append((i, k))
        for j in range(self.now):
            used = {(r, k): self.weight(weights, j, e.i64((k - r * len(taps)) * self.lanes))
                    for r in readers for k, reads in enumerate(taps) if reads}
            for element, found in sorted(places.items()):
                at = t.Add(bases[j], e.i64(element * self.element))
                value = e.math.share(e.read(self.source, "float32", at, self.lanes))
                for r in readers:
                    for i, k in found:
                        self.take(sums, (r * width + i) * self.now + j, value, used[r, k])
