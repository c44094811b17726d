"""Constant matrices in the layout that kernels read: new initializers that take the originals' place.

Composites keep the original matrix, so a portable model needs no packed one. Packing is lazy: a matrix is packed when
its bytes are written, one at a time, and never kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]


def pack_columns(matrix: Array, panel: int, transposed: bool) -> Array:
    """A matrix [k, n], or [n, k] if `transposed`, as [panels, k, panel]; the last panel is filled up with zeros."""
    matrix = matrix.T if transposed else matrix
    depth, width = matrix.shape
    panels = -(-width // panel)
    packed = np.zeros((panels, depth, panel), matrix.dtype)
    for p in range(panels):
        part = matrix[:, p * panel:(p + 1) * panel]
        packed[p, :, :part.shape[1]] = part
    return packed


class Packer:
    """Makes each packed initializer once, whoever asks for it."""

    def __init__(self) -> None:
        self._made: dict[tuple[ir.Value, int, bool], ir.Value] = {}

    def packed(self, value: ir.Value, panel: int, transposed: bool) -> ir.Value:
        """The initializer that holds `value` packed, in the graph of `value`, a float32 initializer of rank 2."""
        key = value, panel, transposed
        if key not in self._made:
            self._made[key] = _register(value, panel, transposed)
        return self._made[key]


def _register(value: ir.Value, panel: int, transposed: bool) -> ir.Value:
    graph, original = value.graph, value.const_value
    assert isinstance(graph, ir.Graph)
    assert original is not None
    assert value.shape is not None
    shape = value.shape.numpy()
    depth, width = shape[::-1] if transposed else shape
    name = f"{value.name}_packed{panel}"
    while name in graph.initializers:
        name += "_"
    extents = ir.Shape([-(-width // panel), depth, panel])
    tensor = ir.LazyTensor(lambda: ir.tensor(pack_columns(original.numpy(), panel, transposed)),
                           dtype=original.dtype, shape=extents, cache=False, name=name)
    made = ir.Value(name=name, shape=extents, type=ir.TensorType(original.dtype), const_value=tensor)
    graph.register_initializer(made)
    return made
