"""How a window kernel computes: what the code generator emits and what the cost model prices are one decision."""

from __future__ import annotations

from tilegraph.ops.conv.space import ConvSpace
from tilegraph.spec import filters

_MIN_CHANNELS = 16
_MAX_CHANNELS = 1024
_MIN_TILES = 16
_FEW_TILES = 24  # below it, large weights would cost more to stream than the products that they save
_LARGE = 8 << 20  # bytes


def algorithm(space: ConvSpace) -> str:
    """"taps" (each channel by itself), "groups" (several in a block), "winograd", "winograd4" (where
    `space.fast` allows it) or "direct".

    Winograd's F(2x2, 3x3) takes 16 products where 36 are, for transforms of source and result and weights that are 16/9
    as large. `docs/conv.md` has the measurements behind the bounds.
    """
    if space.schedule.algorithm is not None:
        return space.schedule.algorithm
    if space.kind != "conv":
        return "groups" if space.kind == "grouped" else "taps"
    if not _fits_winograd(space):
        return "direct"
    tiles = 1
    for axis in space.axes:
        out = axis.out.as_int()
        tiles *= _FEW_TILES if out is None else -(-out // 2)
    weights = 16 * 4 * space.depth * space.filters
    if tiles < (_FEW_TILES if weights > _LARGE else _MIN_TILES):
        return "direct"
    return "winograd4" if space.fast and _larger_tiles(space) else "winograd"


def algorithms(space: ConvSpace) -> tuple[str, ...]:
    """All that may compute `space`, the one of `algorithm` first. "winograd4" only where it is that: `verify` expects
    its errors there and nowhere else."""
    usual = algorithm(space)
    if space.kind != "conv" or not _fits_winograd(space):
        return (usual,)
    return usual, *(one for one in ("direct", "winograd") if one != usual)


def half_vectors(space: ConvSpace) -> int:
    """How many vectors of half a block of filters the sums of `space` take; 0 where whole ones are as good, or where
    its filters or weights are not the same for all of a unit."""
    simple = space.groups == 1 and space.blocked and space.plain is None and space.factor is None and not space.phases
    if space.kind != "conv" or not simple or space.schedule.vectors is not None:
        return 0
    return filters.half_vectors(space.filters, space.depth, space.lanes)


def _fits_winograd(space: ConvSpace) -> bool:
    fits = len(space.axes) == 2 and all(
        a.kernel == 3 and a.stride == 1 and a.dilation == 1 and a.before <= 2 for a in space.axes)
    channels = _MIN_CHANNELS <= space.depth <= _MAX_CHANNELS and space.filters >= _MIN_CHANNELS
    return fits and channels and space.groups == 1 and space.blocked and not space.phases


def _larger_tiles(space: ConvSpace) -> bool:
    """Whether F(4x4, 3x3) takes less than F(2x2, 3x3): 36 products a tile instead of 16, in whole tiles. Large weights
    take as long as `_FEW_TILES` tiles, to stream them."""
    times = []
    for size in (2, 4):
        points, tiles = (size + 2) ** 2, 1
        for axis in space.axes:
            out = axis.out.as_int()
            tiles *= -(-(2 * _FEW_TILES if out is None else out) // size)
        large = points * 4 * space.depth * space.filters > _LARGE
        times.append(points * (max(tiles, _FEW_TILES) if large else tiles))
    return times[1] < times[0]
