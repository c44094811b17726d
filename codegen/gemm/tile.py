"""The sizes of a product's kernel: registers, panels of the matrix, blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline

BLOCK_ROWS = 256
_FEW = 4  # panels: with fewer, blocks of rows are smaller, so that there are units for every thread
_CACHE = 1 << 18  # elements of a level 2 cache: 1 MB
_WIDTH_COST = {1: 2.0, 2: 2.05, 3: 3.0}  # of a panel of so many vectors: one vector waits for the loads of the left


@dataclass(frozen=True)
class Tile:
    """Register block: `rows` x `vectors` of `lanes`; a panel is `vectors` * `lanes` columns wide."""

    lanes: int
    rows: int
    vectors: int

    @property
    def panel(self) -> int:
        """Columns."""
        return self.lanes * self.vectors

    @staticmethod
    def choose(n: int, vector_bits: int) -> Tile:
        """8 x 3 of 32 registers with AVX-512, 4 x 3 of 16 with AVX2; less wide panels where the last one is worth it.

        Raises `Decline` below 256 bits: without fused multiply-add the product rounds twice and is slow.
        """
        if vector_bits < 256:
            raise Decline(f"matrix products need vectors of 256 bits or more, not {vector_bits}")
        lanes, rows = vector_bits // 32, 8 if vector_bits >= 512 else 4
        cost = _costs([n], lanes)
        return Tile(lanes, rows, min(sorted(cost, reverse=True), key=cost.__getitem__))

    @staticmethod
    def of(space: GemmSpace, vector_bits: int) -> Tile:
        """Panels of several float32 matrices that lie in the level 2 cache as a whole are two vectors wide, so that
        those of one unit take less of it. Products with results of their own have panels of one width."""
        tile = Tile.choose(space.n, vector_bits)
        if space.beside:
            cost = _costs([one.n for one in space.members], tile.lanes)
            return replace(tile, vectors=min(sorted(cost, reverse=True), key=cost.__getitem__))
        if space.others and space.precision == "float32" and not is_deep(space, tile):
            tile = replace(tile, vectors=min(2, tile.vectors))
        return tile


def _costs(columns: Sequence[int], lanes: int) -> dict[int, float]:
    """Of matrices with so many columns, by the number of vectors of their panels."""
    widths = [-(-n // lanes) for n in columns]
    return {v: sum(w // v * c + _WIDTH_COST.get(w % v, 0.0) for w in widths)
            for v, c in _WIDTH_COST.items() if v <= max(widths)}


def is_deep(space: GemmSpace, tile: Tile) -> bool:
    """Whether the panels of a unit and the next ones do not fit the level 2 cache together."""
    return 2 * space.depth * tile.panel * len(space.matrices) > _CACHE


def block_rows(panels: int) -> int:
    """Rows of a block where a matrix has so many panels."""
    return BLOCK_ROWS if panels >= _FEW else BLOCK_ROWS // 4
