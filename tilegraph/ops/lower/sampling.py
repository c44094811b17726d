"""GridSample and AffineGrid: images read where a grid says, and the grid of an affine map.

The arithmetic is ONNX Runtime's: coordinates from -1 to 1 become places in pixels, places beyond the border are clamped
or reflected, and what is still outside reads 0 ("zeros") or the nearest pixel.
"""

from __future__ import annotations

from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, point, quotient, scalar
from tilegraph.ops.lower.views import reshape, take_range
from tilegraph.ops.prims import Pick, Position, Prim
from tilegraph.spec.dims import Dim

_LINEAR, _NEAREST = ("linear", "bilinear"), ("nearest",)


def lower_grid_sample(c: NodeContext) -> list[Prim]:
    """x: [N, C, H, W], grid: [N, h, w, 2] (x before y) -> [N, C, h, w]."""
    x, grid = c.arg(0), c.arg(1)
    mode, padding = str(c.attr("mode", "linear")), str(c.attr("padding_mode", "zeros"))
    if len(x.shape) != 4 or mode not in _LINEAR + _NEAREST:
        raise c.decline(f"GridSample in mode {mode} of rank {len(x.shape)}")
    if x.dtype != grid.dtype or not x.dtype.startswith("float"):
        raise c.decline(f"GridSample of {x.dtype} at places of {grid.dtype}")
    if x.shape[2].as_int() is None or x.shape[3].as_int() is None:
        raise c.decline("GridSample of an image of symbolic extents")
    where = [_Along(c, grid, k, int(x.shape[3 - k].as_int() or 0), mode in _NEAREST, padding) for k in (0, 1)]
    across, down = where
    if mode in _NEAREST:
        return [_pixel(x, grid, down, down.at, across, across.at, padding)]
    total: Prim | None = None
    for row in (0, 1):
        line: Prim | None = None
        for column in (0, 1):
            pixel = _pixel(x, grid, down, down.neighbours[row], across, across.neighbours[column], padding)
            part = point("Mul", [across.weights[column], pixel], x.dtype)
            line = part if line is None else point("Add", [line, part], x.dtype)
        part = point("Mul", [down.weights[row], line], x.dtype)
        total = part if total is None else point("Add", [total, part], x.dtype)
    assert total is not None
    return [total]


class _Along:
    """The places along one axis of `size` pixels: `at`, and for interpolation two neighbours with their weights."""

    def __init__(self, c: NodeContext, grid: Prim, k: int, size: int, nearest: bool, padding: str) -> None:
        self.size, self.dtype = size, grid.dtype
        f = grid.dtype
        n = reshape(take_range(grid, 3, k, 1, Dim.of(1)), (grid.shape[0], Dim.of(1), *grid.shape[1:3]))
        corners = bool(int(c.attr("align_corners", 0)))
        n = point("Add", [n, scalar(1, f)], f)
        if corners:
            at: Prim = point("Mul", [quotient(n, scalar(2, f)), scalar(size - 1, f)], f)
        else:
            at = quotient(point("Sub", [point("Mul", [n, scalar(size, f)], f), scalar(1, f)], f), scalar(2, f))
        if nearest:
            at = point("Round", [at], f)
        self.low, self.high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if padding == "border":
            at = self._between(at, 0.0, size - 1.0)
        elif padding == "reflection":
            at = self._reflected(at)
        # NaN and what is far away must not reach an integer.
        at = point("Where", [point("IsNaN", [at], "bool"), scalar(-2, f), at], f)
        self.at = self._between(at, -2.0, size + 1.0)
        first = point("Floor", [self.at], f)
        second = point("Add", [first, scalar(1, f)], f)
        self.neighbours = (first, second)
        self.weights = (point("Sub", [second, self.at], f), point("Sub", [self.at, first], f))

    def _between(self, at: Prim, low: float, high: float) -> Prim:
        f = self.dtype
        return point("Min", [point("Max", [at, scalar(low, f)], f), scalar(high, f)], f)

    def _reflected(self, at: Prim) -> Prim:
        """Folded back at both ends as often as it takes."""
        f, span = self.dtype, self.high - self.low
        if span == 0:
            return point("Mul", [at, scalar(0, f)], f)

        def folded(beyond: Prim, here: float, there: float, sign: int) -> Prim:
            turns = point("Floor", [quotient(beyond, scalar(span, f))], f)
            rest = point("Sub", [beyond, point("Mul", [turns, scalar(span, f)], f)], f)
            half = quotient(turns, scalar(2, f))
            even = point("Equal", [point("Floor", [half], f), half], "bool")
            back = point("Mul", [rest, scalar(sign, f)], f)
            return point("Where", [even, point("Add", [scalar(here, f), back], f),
                                   point("Sub", [scalar(there, f), back], f)], f)

        below = folded(point("Sub", [scalar(self.low, f), at], f), self.low, self.high, 1)
        above = folded(point("Sub", [at, scalar(self.high, f)], f), self.high, self.low, -1)
        return point("Where", [point("Less", [at, scalar(self.low, f)], "bool"), below,
                               point("Where", [point("Greater", [at, scalar(self.high, f)], "bool"), above, at], f)], f)

    def inside(self, place: Prim) -> Prim:
        return point("And", [point("GreaterOrEqual", [place, scalar(0, self.dtype)], "bool"),
                             point("LessOrEqual", [place, scalar(self.size - 1, self.dtype)], "bool")], "bool")

    def index(self, place: Prim, padding: str) -> Prim:
        if padding == "reflection":
            place = point("Floor", [point("Abs", [self._reflected(place)], self.dtype)], self.dtype)
        return point("Cast", [self._between(place, 0.0, self.size - 1.0)], "int64", attrs={"to": 7})


def _pixel(x: Prim, grid: Prim, down: _Along, row: Prim, across: _Along, column: Prim, padding: str) -> Prim:
    """[N, C, h, w]: the pixels of `x` at whole places."""
    shape = (*x.shape[:2], *grid.shape[1:3])

    def pull(ix: tuple[Ix, ...], at: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:2], *at)

    found = Pick(shape, x.dtype, source=x, indices=(down.index(row, padding), across.index(column, padding)),
                 extents=x.shape[2:], pull=pull, key="pixel")
    if padding != "zeros":
        return found
    inside = point("And", [down.inside(row), across.inside(column)], "bool")
    return point("Where", [inside, found, scalar(0, x.dtype)], x.dtype)


def lower_affine_grid(c: NodeContext) -> list[Prim]:
    """theta: [N, 2, 3] -> [N, H, W, 2], or [N, 3, 4] -> [N, D, H, W, 3]; the last axis is x before y before z."""
    theta, size = c.arg(0), c.ints(1)
    if size is None or len(size) not in (4, 5):
        raise c.decline("AffineGrid lacks the size of a flat or deep image")
    f, extents = theta.dtype, size[2:]
    rank = len(extents)
    if not f.startswith("float") or theta.shape[0] != size[0]:
        raise c.decline(f"AffineGrid of {f} maps for {size[0]} images where there are {theta.shape[0]} maps")
    corners = bool(int(c.attr("align_corners", 0)))
    if corners and min(extents) == 1:
        raise c.decline("AffineGrid with one element between aligned corners")

    def column(k: int) -> Prim:
        return reshape(take_range(theta, 2, k, 1, Dim.of(1)), (theta.shape[0], *[Dim.of(1)] * rank, Dim.of(rank)))

    result: Prim | None = None
    for k in range(rank):  # x runs along the last axis
        extent = extents[rank - 1 - k]
        shape = tuple(Dim.of(extent if a == rank - k else 1) for a in range(rank + 2))
        step = 2.0 / (extent - 1) if corners else 2.0 / extent
        along = point("Mul", [Position(shape, f, axis=rank - k), scalar(step, f)], f)
        along = point("Add", [along, scalar(-1.0 if corners else -1.0 + step / 2, f)], f)
        part = point("Mul", [column(k), along], f)
        result = part if result is None else point("Add", [result, part], f)
    assert result is not None
    return [point("Add", [result, column(rank)], f)]
