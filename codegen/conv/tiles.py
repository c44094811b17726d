"""Register tiles: how many neighbouring results of a line, and of how many blocks of channels, are summed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tilegraph.ops.conv import Axis

MAX_TAPS = 16  # of a line, for each of which there is code
_REGISTERS = {256: 16, 512: 32}
_LATENCY = 8  # accumulators that keep two pipes of four steps busy
MAX_VECTORS = 6


@dataclass(frozen=True)
class Piece:
    """`count` tiles of `width` results from `start`. `taps[k]`: for which results of a tile tap k reads an element."""

    start: int
    count: int
    width: int
    taps: tuple[tuple[int, ...], ...]


def widest(vectors: int, vector_bits: int) -> int:
    """The results of a tile of `vectors` blocks: accumulators, weights and one operand fit into the registers."""
    return min((_REGISTERS[vector_bits] - vectors - 1) // vectors, 28)


def vectors_for(out: int | None, blocks: int, vector_bits: int) -> int:
    """Blocks of channels a tile: the least time for a line of `out` results (None: unknown) of `blocks` blocks."""
    best, least = 1, float("inf")
    for vectors in range(1, min(MAX_VECTORS, blocks) + 1):
        width = widest(vectors, vector_bits)
        whole, rest = divmod(blocks, vectors)
        time = whole * _line_time(out, width, vectors) + (_line_time(out, width, rest) if rest else 0)
        if rest:
            time *= 1.02  # two copies of the code
        if time < 0.995 * least:
            best, least = vectors, time
    return best


def _line_time(out: int | None, width: int, vectors: int) -> float:
    """Half cycles a tap: of multiplications, of loads, or of waiting for the sums; and something for the next tile."""
    widths = split(out, width) if out is not None else [width] * 8
    scale = 1 if out is not None else 28 / width
    return scale * sum(max(w * vectors, w + vectors, _LATENCY) + 0.5 for w in widths)


def split(out: int, width: int) -> list[int]:
    """`out` results in as few tiles of at most `width` as there can be, of nearly equal widths, wide ones first."""
    count = -(-out // width)
    small, large = divmod(out, count)
    return [small + 1] * large + [small] * (count - large)


def pieces(axis: Axis, widths: Sequence[int]) -> list[Piece]:
    """The tiles of a line with static extents; neighbours of one form are one piece."""
    size, kernel = axis.size.value, axis.kernel.value
    found: list[Piece] = []
    start = 0
    for width in widths:
        taps = tuple(tuple(i for i in range(width)
                           if 0 <= (start + i) * axis.stride + k * axis.dilation - axis.before < size)
                     for k in range(kernel))
        found.append(Piece(start, 1, width, taps))
        start += width
    merged = []
    for (width, taps), group in groupby(found, key=lambda p: (p.width, p.taps)):
        members = list(group)
        merged.append(Piece(members[0].start, len(members), width, taps))
    return merged


@dataclass(frozen=True)
class Borders:
    """The taps of the first and of the last tile of a line of symbolic extent that is long enough; None: no window of
    theirs reaches outside. `closed`: so it is known which windows reach over the end; otherwise `right` is None."""

    left: tuple[tuple[int, ...], ...] | None
    right: tuple[tuple[int, ...], ...] | None
    closed: bool


def line_borders(axis: Axis, width: int) -> Borders | None:
    """None where a tile of `width` results does not hold all windows that reach over a border, or taps are too many."""
    kernel = axis.kernel.as_int()
    if kernel is None or kernel > MAX_TAPS or axis.before < 0 or axis.before > width * axis.stride:
        return None
    left = tuple(tuple(i for i in range(width) if i * axis.stride + k * axis.dilation >= axis.before)
                 for k in range(kernel))
    more = (axis.out - axis.size).as_int() if axis.stride == 1 else None
    if more is None:
        return Borders(left if axis.before else None, None, False)
    # The last window starts at size + more - 1 - before.
    over = more + (kernel - 1) * axis.dilation - axis.before
    if over > width:
        return None
    right = tuple(tuple(i for i in range(width) if i - width + more + k * axis.dilation < axis.before)
                  for k in range(kernel))
    return Borders(left if axis.before else None, right if over > 0 else None, True)


def all_taps(axis: Axis, width: int) -> tuple[tuple[int, ...], ...]:
    """Of a tile that lies inside."""
    return (tuple(range(width)),) * axis.kernel.value


def inside(axis: Axis) -> bool:
    """Whether every window lies in the source for certain."""
    size, out, kernel = axis.size.as_int(), axis.out.as_int(), axis.kernel.as_int()
    if axis.plain:
        return True
    if size is None or out is None or kernel is None:
        return False
    return axis.before <= 0 and (out - 1) * axis.stride + (kernel - 1) * axis.dilation - axis.before < size
