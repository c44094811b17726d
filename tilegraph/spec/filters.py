"""How kernels want constants laid out, those of convolutions and those of which matrices are computed; the compiler
lays them out, see `compiler.filters` and `compiler.tables`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST_HALVES = 5  # from 7 on few results fit beside them, and an eighth is all there is to gain


def half_vectors(filters: int, depth: int, lanes: int) -> int:
    """In how many vectors of half a block of `filters`, for two channels each, a kernel sums `depth` channels; 0 where
    whole blocks for one channel are as good.

    Good for an odd number of half blocks, and for one block where registers hold 28 sums: with one load for each
    product of a vector the loads would be the limit.
    """
    count = -(-filters // (lanes // 2))
    wanted = count % 2 == 1 or (count == 2 and lanes >= 16)
    return count if wanted and count <= _MOST_HALVES and depth % 2 == 0 else 0


@dataclass(frozen=True)
class Filters:
    """A layout of weights [K, C, (rows,) columns] or of a bias [K], filled up with zeros.

    direct: [K/panel][C/block][column][row][channel of the block][filter of the panel]
    transposed: the same of weights [C, K, (rows,) columns] as those of a convolution that makes `strides` results of
    each place: window k of phase p is k*stride + p from behind, zero past the end; K counted by phases, block
    narrow: as transposed, with K counted by filter, row, column
    pairs: as direct, the channels of a block two by two: [..][pair][filter of the panel][even or odd channel]
    winograd-pairs, winograd4-pairs: so, of those below
    taps: [K/panel][row][column][C][filter of the panel], C of one group
    winograd: [K/panel][point][C][filter of the panel], G g G^T of each filter g [3, 3], 16 points
    winograd4: the same with 36 points, see `spec.winograd`
    bias: [K/panel][filter of the panel]

    Or of a constant with `block` columns, [rows, block] ("columns") or [block, rows] ("rows"), for products:
    [block/panel][row][column of the panel]; of 4-bit integers ("columns4", "rows4") bytes of two rows, the even one in
    the low half

    Of 8-bit integers [rows, block] ("quads") or [block, rows] ("rowquads"), as int8:
    [block/panel][row/4][column of the panel][4], and behind each panel the sums of its columns, int32

    Of the bytes of MatMulNBits: weights ("bits4", "bits8") as [block/panel][word][column of the panel][4], a word 4
    neighbours of 8 bits, or 8 of 4 bits, the last four in the high halves; zero points as "rows", or unpacked
    ("zeros4")
    """

    kind: str
    panel: int
    block: int = 1
    strides: tuple[int, ...] = ()  # of "transposed"

    def to_json(self) -> list[Any]:
        return [self.kind, self.panel, self.block, *([self.strides] if self.strides else [])]

    @staticmethod
    def from_json(data: list[Any]) -> Filters:
        return Filters(*data[:3], *map(tuple, data[3:]))
