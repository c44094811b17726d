"""Constants of convolutions in the layout that kernels read, see `spec.filters`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilegraph.spec.filters import Filters
from tilegraph.spec.winograd import WEIGHTS

Array = np.ndarray[Any, Any]

_WINOGRAD = {"winograd": 2, "winograd4": 4}  # results of a tile in a line


def packed_extents(shape: tuple[int, ...], how: Filters) -> tuple[int, ...]:
    """The shape of what `pack_filters` makes of a tensor of `shape`."""
    if (plain := _unpaired(how)) is not how:
        *outer, channels, filters = packed_extents(shape, plain)
        return *outer, channels // 2, 2 * filters
    if how.kind in ("transposed", "narrow"):
        shape = _apart_extents(shape, how)
    panels = -(-shape[0] // how.panel)
    rows, columns = _window(shape)
    match how.kind:
        case "direct" | "transposed" | "narrow":
            return panels, -(-shape[1] // how.block), columns, rows, how.block, how.panel
        case "taps":
            return panels, rows, columns, shape[1], how.panel
        case "winograd" | "winograd4":
            return panels, (_WINOGRAD[how.kind] + 2) ** 2, shape[1], how.panel
        case "bias":
            return panels, how.panel
    raise ValueError(how.kind)


def pack_filters(array: Array, how: Filters) -> Array:
    """Weights [K, C, (rows,) columns] or a bias [K] laid out as `how` says."""
    extents = packed_extents(array.shape, how)
    if (plain := _unpaired(how)) is not how:
        packed = pack_filters(array, plain)
        pairs = packed.reshape(*packed.shape[:-2], -1, 2, packed.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(-1, -2)).reshape(extents)
    if how.kind in ("transposed", "narrow"):
        array, how = _apart(array, how), replace(how, kind="direct")
    if how.kind in _WINOGRAD:
        g = np.array(WEIGHTS[_WINOGRAD[how.kind]])
        points = np.einsum("ik,ockl,jl->ijoc", g, array.astype(np.float64), g).reshape(len(g) ** 2, *array.shape[:2])
        whole = np.zeros((len(points), extents[0] * how.panel, array.shape[1]), array.dtype)
        whole[:, :array.shape[0]] = points
        parts = whole.reshape(len(points), extents[0], how.panel, array.shape[1])
        return np.ascontiguousarray(parts.transpose(1, 0, 3, 2))
    rows, columns = _window(array.shape)
    channels = array.shape[1] if array.ndim > 1 else 1
    depth = -(-channels // how.block) * how.block
    whole = np.zeros((extents[0] * how.panel, depth, rows, columns), array.dtype)
    whole[:array.shape[0], :channels] = array.reshape(-1, channels, rows, columns)
    parts = whole.reshape(extents[0], how.panel, depth // how.block, how.block, rows, columns)
    order = (0, 2, 5, 4, 3, 1) if how.kind == "direct" else (0, 4, 5, 2, 3, 1)
    return np.ascontiguousarray(parts.transpose(order)).reshape(extents)


def _unpaired(how: Filters) -> Filters:
    """The layout of which `how` has two channels beside each other; itself if it has not."""
    if how.kind == "pairs":
        return replace(how, kind="direct")
    return replace(how, kind=how.kind.removesuffix("-pairs")) if how.kind.endswith("-pairs") else how


def _apart_extents(shape: tuple[int, ...], how: Filters) -> tuple[int, int, int, int]:
    rows, columns = _window(shape)
    if how.kind == "narrow":
        return rows * columns * shape[1], shape[0], 1, 1
    down, across = _strides(how)
    return down * across * -(-shape[1] // how.block) * how.block, shape[0], -(-rows // down), -(-columns // across)


def _apart(array: Array, how: Filters) -> Array:
    """Weights [C, K, (rows,) columns] as those of a convolution to K filters, in whole blocks, for each place."""
    if how.kind == "narrow":
        return array.reshape(array.shape[0], -1).T.reshape(_apart_extents(array.shape, how))
    (rows, columns), (down, across) = _window(array.shape), _strides(how)
    extents = _apart_extents(array.shape, how)
    channels, filters = array.shape[:2]
    whole = np.zeros((channels, extents[0] // (down * across), extents[2] * down, extents[3] * across), array.dtype)
    whole[:, :filters, :rows, :columns] = array.reshape(channels, filters, rows, columns)
    taps = whole.reshape(channels, -1, extents[2], down, extents[3], across)[:, :, ::-1, :, ::-1]
    return np.ascontiguousarray(taps.transpose(3, 5, 1, 0, 2, 4)).reshape(extents)


def _strides(how: Filters) -> tuple[int, int]:
    return (1, how.strides[0]) if len(how.strides) == 1 else (how.strides[0], how.strides[1])


def _window(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 3:
        return 1, 1
    return (1, shape[2]) if len(shape) == 3 else (shape[2], shape[3])
