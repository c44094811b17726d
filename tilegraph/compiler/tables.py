"""Constants of which kernels compute a matrix, in the layout that they read, see `spec.filters`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilegraph.spec.filters import Filters

Array = np.ndarray[Any, Any]
TABLES = frozenset({"columns", "rows"})


def table_extents(shape: tuple[int, ...], how: Filters) -> tuple[int, ...]:
    """The shape of what `pack_table` makes of a constant of `shape`."""
    return -(-how.block // how.panel), math.prod(shape) // how.block, how.panel


def pack_table(array: Array, how: Filters) -> Array:
    """A constant with `how.block` columns as panels of `how.panel` columns, the last one filled up with zeros."""
    rows = array.reshape(-1, how.block) if how.kind == "columns" else array.reshape(how.block, -1).T
    return _panels(rows, how.panel)


def _panels(rows: Array, panel: int) -> Array:
    """[depth, width] as [width/panel, depth, panel]."""
    depth, width = rows.shape
    whole = np.zeros((depth, -(-width // panel) * panel), rows.dtype)
    whole[:, :width] = rows
    return np.ascontiguousarray(whole.reshape(depth, -1, panel).swapaxes(0, 1))
