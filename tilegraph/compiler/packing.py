"""Constant matrices in the layout that kernels read: new initializers that take the originals' place.

Composites keep the original matrix, so a portable model needs no packed one. Packing is lazy: a matrix is packed when
its bytes are written, one at a time, and never kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.compiler.filters import pack_filters, packed_extents
from tilegraph.compiler.tables import TABLES, pack_table, table_extents
from tilegraph.ops.prims import Decline
from tilegraph.spec.filters import Filters

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
        self._made: dict[tuple[Any, ...], ir.Value] = {}

    def packed(self, value: ir.Value, panel: int, transposed: bool, extents: tuple[int, ...]) -> ir.Value:
        """The initializer that holds `value` packed, in the graph of `value`, a float32 initializer.

        `extents`: [k, n], or [n, k] if `transposed`, the matrix that its elements are in their order.
        """
        depth, width = extents[::-1] if transposed else extents
        return self._once(value, (panel, transposed, extents), f"packed{panel}", (-(-width // panel), depth, panel),
                          lambda array: pack_columns(array.reshape(extents), panel, transposed))

    def filters(self, value: ir.Value, how: Filters) -> ir.Value:
        """The initializer that holds `value`, a constant of a convolution or of a matrix, laid out so; or `Decline`."""
        if value.const_value is None or value.shape is None:
            raise Decline(f"the weights {value.name} are not constant")
        if how.kind in TABLES:
            return self._once(value, (how,), f"{how.kind}{how.panel}", table_extents(value.shape.numpy(), how),
                              lambda array: pack_table(array, how))
        return self._once(value, (how,), f"{how.kind}{how.panel}", packed_extents(value.shape.numpy(), how),
                          lambda array: pack_filters(array, how))

    def _once(self, value: ir.Value, how: tuple[Any, ...], suffix: str, extents: tuple[int, ...],
              make: Callable[[Array], Array]) -> ir.Value:
        if (value, *how) not in self._made:
            self._made[value, *how] = _register(value, suffix, extents, make)
        return self._made[value, *how]


def _register(value: ir.Value, suffix: str, extents: tuple[int, ...], make: Callable[[Array], Array]) -> ir.Value:
    graph, original = value.graph, value.const_value
    assert isinstance(graph, ir.Graph)
    assert original is not None
    name = f"{value.name}_{suffix}"
    while name in graph.initializers:
        name += "_"
    shape = ir.Shape(extents)
    tensor = ir.LazyTensor(lambda: ir.tensor(make(original.numpy())), dtype=original.dtype, shape=shape, cache=False,
                           name=name)
    made = ir.Value(name=name, shape=shape, type=ir.TensorType(original.dtype), const_value=tensor)
    graph.register_initializer(made)
    return made
