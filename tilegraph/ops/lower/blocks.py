"""Nodes that repeat or rearrange blocks: Tile, DepthToSpace, SpaceToDepth, as reshapes, transposes and expansions."""

from __future__ import annotations

from tilegraph.ops.lower.base import NodeContext
from tilegraph.ops.lower.views import expand, reshape, transpose
from tilegraph.ops.prims import Prim
from tilegraph.spec.dims import Dim


def lower_tile(c: NodeContext) -> list[Prim]:
    source = c.arg(0)
    repeats = c.ints(1)
    if repeats is None or len(repeats) != len(source.shape):
        raise c.decline("Tile lacks a repeat for each axis")
    if any(r == 0 for r in repeats):
        raise c.decline("the result of Tile is empty")
    apart: list[Dim] = []
    wide: list[Dim] = []
    for extent, count in zip(source.shape, repeats, strict=True):
        apart += [Dim.of(1), extent]
        wide += [Dim.of(count), extent]
    result = tuple(extent * count for extent, count in zip(source.shape, repeats, strict=True))
    return [reshape(expand(reshape(source, tuple(apart)), tuple(wide)), result)]


# The order of axes of DepthToSpace and of SpaceToDepth, by mode.
_MODES = {"DCR": ([0, 3, 4, 1, 5, 2], [0, 3, 5, 1, 2, 4]), "CRD": ([0, 1, 4, 2, 5, 3], [0, 1, 3, 5, 2, 4])}


def _mode(c: NodeContext) -> str:
    mode = str(c.attr("mode", "DCR"))
    if mode not in _MODES:
        raise c.decline(f"{c.node.op_type} in mode {mode}")
    return mode


def _block(c: NodeContext, source: Prim) -> int:
    if len(source.shape) != 4:
        raise c.decline(f"{c.node.op_type} of rank {len(source.shape)}")
    return int(c.attr("blocksize"))


def lower_depth_to_space(c: NodeContext) -> list[Prim]:
    """Mode DCR: the block index varies slowest among the channels; CRD: fastest."""
    source = c.arg(0)
    b = Dim.of(_block(c, source))
    n, channels, h, w = source.shape
    depth = channels.exact_div(b * b)
    if depth is None:
        raise c.decline(f"{channels} channels in blocks of {b} x {b}")
    mode = _mode(c)
    apart = (n, b, b, depth, h, w) if mode == "DCR" else (n, depth, b, b, h, w)
    moved = transpose(reshape(source, apart), _MODES[mode][0])
    return [reshape(moved, (n, depth, h * b, w * b))]


def lower_space_to_depth(c: NodeContext) -> list[Prim]:
    """The same modes, of the result's channels."""
    source = c.arg(0)
    order = _MODES[_mode(c)][1]
    b = Dim.of(_block(c, source))
    n, channels, h, w = source.shape
    rows, columns = h.exact_div(b), w.exact_div(b)
    if rows is None or columns is None:
        raise c.decline(f"an image of {h} x {w} in blocks of {b} x {b}")
    moved = transpose(reshape(source, (n, channels, rows, b, columns, b)), order)
    return [reshape(moved, (n, channels * b * b, rows, columns))]
