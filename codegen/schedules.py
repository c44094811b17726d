"""The schedules of a kernel that `--tune` may time against the one that its generator would choose."""

from __future__ import annotations

from dataclasses import replace

from tilegraph.codegen.attention.bounds import can_skip
from tilegraph.codegen.attention.products import Tile as Block
from tilegraph.codegen.conv.tiles import MAX_VECTORS, vectors_for
from tilegraph.codegen.gemm.tile import Tile, block_rows
from tilegraph.codegen.isa import Isa
from tilegraph.ops.attention import AttentionSpace, plan_attention
from tilegraph.ops.conv import ConvSpace, algorithms, plan_conv, plan_fast
from tilegraph.ops.gemm import GemmSpace, plan_gemm
from tilegraph.ops.prims import Lowered
from tilegraph.spec.schedule import Schedule

_ROWS = (64, 128, 256, 512)  # of a block of a matrix product
_BLOCKS = ((32, 64), (32, 128), (64, 64), (64, 128), (128, 64))  # queries and keys


def candidates(kind: str, lowered: Lowered, isa: Isa) -> list[Schedule]:
    """What differs from the default for a composite of that kind, in a fixed order; nothing where nothing can.

    Raises what planning and the choice of a tile raise (`Decline`).
    """
    match kind:
        case "Gemm":
            return _gemm(plan_gemm(lowered), isa)
        case "Conv":
            return _conv(plan_conv(lowered), isa)
        case "ConvFast":
            return _conv(plan_fast(lowered), isa)
        case "Attention":
            return _attention(plan_attention(lowered), isa)
    return []


def _gemm(space: GemmSpace, isa: Isa) -> list[Schedule]:
    """Other widths of panels, and other blocks of rows where there are so many. Integers choose by instructions."""
    if space.quantized is not None:
        return []
    tile, rows = Tile.of(space, isa.vector_bits), space.m.as_int()
    found = [Schedule(vectors=v) for v in (1, 2, 3) if v != tile.vectors and v <= -(-space.n // tile.lanes)]
    usual = block_rows(-(-space.n // tile.panel))
    # Above half as many as there are, all blocks but the first would be nearly empty.
    fits = [r for r in _ROWS if rows is None or r < rows]
    if rows is not None and rows <= usual:
        fits = [r for r in fits if r <= rows // 2]
    return found + [Schedule(rows=r) for r in fits if r != usual]


def _conv(space: ConvSpace, isa: Isa) -> list[Schedule]:
    """Other algorithms, and one vector of filters in a tile more or less."""
    usual, *others = algorithms(space)
    found = [Schedule(algorithm=other) for other in others]
    if usual not in ("direct", "winograd", "winograd4") or space.groups > 1 or space.plain is not None:
        return found
    line = space.axes[-1].out.as_int() if usual == "direct" else None
    vectors = vectors_for(line, space.blocks, isa.vector_bits)
    return found + [Schedule(vectors=v) for v in (vectors - 1, vectors + 1) if 1 <= v <= min(space.blocks, MAX_VECTORS)]


def _attention(space: AttentionSpace, isa: Isa) -> list[Schedule]:
    """Other blocks of many queries; few are read as they come."""
    if space.has_few is not False:
        return []
    lanes, skips = isa.vector_bits // 32, can_skip(space)
    seen = {_sizes(space, lanes, skips, Schedule())}
    found = []
    for rows, columns in _BLOCKS:
        schedule = Schedule(rows=rows, columns=columns)
        if (sizes := _sizes(space, lanes, skips, schedule)) not in seen:
            seen.add(sizes)
            found.append(schedule)
    return found


def _sizes(space: AttentionSpace, lanes: int, skips: bool, schedule: Schedule) -> tuple[int, int]:
    tile = Block.choose(replace(space, schedule=schedule), lanes, skips)
    return tile.rows, tile.columns
