"""Constants of which kernels compute a matrix, in the layout that they read, see `spec.filters`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.spec.filters import Filters

Array = np.ndarray[Any, Any]
TABLES = frozenset({"columns", "rows", "columns4", "rows4", "quads", "rowquads", "bits4", "bits8", "zeros4"})


def table_extents(shape: tuple[int, ...], how: Filters) -> tuple[int, ...]:
    """The shape of what `pack_table` makes of a constant of `shape`."""
    panels, depth = -(-how.block // how.panel), math.prod(shape) // how.block
    if how.kind in ("quads", "rowquads"):
        return panels, -(-depth // 4) + 1, how.panel, 4
    if how.kind in ("bits4", "bits8"):
        return panels, depth // 4, how.panel, 4
    if how.kind == "zeros4":
        return panels, depth * 2, how.panel
    if how.kind in ("columns4", "rows4"):
        depth = -(-depth // 2)
    return panels, depth, how.panel


def table_dtype(value: ir.Value, how: Filters) -> ir.DataType | None:
    """The dtype of what `pack_table` makes of `value`; None for its own."""
    if how.kind in ("quads", "rowquads"):
        return ir.DataType.INT8
    return ir.DataType.UINT8 if how.kind in ("columns4", "rows4") else None


def pack_table(array: Array, how: Filters) -> Array:
    """A constant with `how.block` columns as panels of `how.panel` columns, the last one filled up with zeros."""
    if how.kind in ("quads", "rowquads"):
        return _quads(_rows(array, how), how.panel)
    if how.kind in ("bits4", "bits8"):
        return _weights(array.reshape(how.block, -1), how.panel, how.kind == "bits4")
    if how.kind == "zeros4":
        return _panels(nibbles(array.reshape(how.block, -1)).T, how.panel)
    rows = _rows(array, how)
    return _panels(_pairs(rows) if how.kind.endswith("4") else rows, how.panel)


def _rows(array: Array, how: Filters) -> Array:
    return array.reshape(how.block, -1).T if how.kind.startswith("rows") or how.kind == "rowquads" else \
        array.reshape(-1, how.block)


def _pairs(rows: Array) -> Array:
    """4-bit integers [depth, width] as bytes [depth/2, width], the row with the even number in the low half."""
    bits = rows.astype(np.int8).view(np.uint8) & 15
    filled = np.concatenate([bits, np.zeros((len(bits) % 2, bits.shape[1]), np.uint8)])
    return np.asarray(filled[::2] | filled[1::2] << 4)


def _quads(matrix: Array, panel: int) -> Array:
    """[depth, width] of 8-bit integers as [width/panel, depth/4, panel, 4] int8 of four neighbours along the depth
    each, and behind each panel its column sums, int32 as bytes. uint8 is moved by -128."""
    signed = (matrix ^ 128).view(np.int8) if matrix.dtype == np.uint8 else matrix
    depth = signed.shape[0]
    filled = np.concatenate([signed, np.zeros((-depth % 4, signed.shape[1]), np.int8)])
    panels = _panels(filled, panel)
    quads = panels.reshape(len(panels), -1, 4, panel).swapaxes(2, 3)
    sums = panels.astype(np.int32).sum(axis=1, dtype=np.int32)
    return np.concatenate([quads, sums.view(np.int8).reshape(len(panels), 1, panel, 4)], axis=1)


def _weights(columns: Array, panel: int, four: bool) -> Array:
    """Bytes [width, depth] of columns as [width/panel, depth/4, panel, 4]; of 4 bits, the low half of a byte and the
    high half of it are four apart, so that both halves of a word are four neighbours."""
    if four:
        eights = nibbles(columns).reshape(len(columns), -1, 2, 4)
        columns = (eights[:, :, 0] | eights[:, :, 1] << 4).reshape(len(columns), -1)
    words = _panels(np.ascontiguousarray(columns).view(np.uint32).T, panel)
    return words.view(np.uint8).reshape(*words.shape, 4)


def nibbles(array: Array) -> Array:
    """The 4-bit integers of bytes [.., k] as [.., 2 k], low ones first."""
    return np.stack([array & 15, array >> 4], axis=-1).reshape(*array.shape[:-1], -1)


def _panels(rows: Array, panel: int) -> Array:
    """[depth, width] as [width/panel, depth, panel]."""
    depth, width = rows.shape
    whole = np.zeros((depth, -(-width // panel) * panel), rows.dtype)
    whole[:, :width] = rows
    return np.ascontiguousarray(whole.reshape(depth, -1, panel).swapaxes(0, 1))
