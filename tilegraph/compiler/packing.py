"""Constant matrices in the layout that kernels read: new initializers that take the originals' place.

Composites keep the original matrix, so a portable model needs no packed one. Packing is lazy: a matrix is packed when
its bytes are written, one at a time, and never kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tilegraph.codegen.generated import Packed
from tilegraph.compiler.filters import pack_filters, packed_extents
from tilegraph.compiler.tables import TABLES, pack_table, table_dtype, table_extents
from tilegraph.ops.prims import Decline
from tilegraph.spec.filters import Filters

Array = np.ndarray[Any, Any]
_DTYPES = {"float32": ir.DataType.FLOAT, "bfloat16": ir.DataType.BFLOAT16}


def pack_columns(matrix: Array, panel: int, transposed: bool, dtype: str = "float32") -> Array:
    """A matrix [k, n], or [n, k] if `transposed`, as [panels, k, panel]; the last panel is filled up with zeros.

    As "bfloat16" it is rounded to nearest, half to even, and becomes [panels, k/2, panel, 2].
    """
    if dtype == "bfloat16":
        return _pairs(pack_columns(matrix, panel, transposed).astype(ml_dtypes.bfloat16))
    matrix = matrix.T if transposed else matrix
    depth, width = matrix.shape
    panels = -(-width // panel)
    packed = np.zeros((panels, depth, panel), matrix.dtype)
    for p in range(panels):
        part = matrix[:, p * panel:(p + 1) * panel]
        packed[p, :, :part.shape[1]] = part
    return packed


def _pairs(packed: Array) -> Array:
    """[panels, k, panel] as [panels, k/2, panel, 2]: neighbours along k side by side, an odd k filled up with zeros."""
    panels, depth, panel = packed.shape
    if depth % 2:
        packed = np.concatenate([packed, np.zeros((panels, 1, panel), packed.dtype)], axis=1)
    return np.ascontiguousarray(packed.reshape(panels, -1, 2, panel).swapaxes(2, 3))


class Packer:
    """Makes each packed initializer once, whoever asks for it."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], ir.Value] = {}

    def packed(self, values: Sequence[ir.Value], how: Packed, extents: Sequence[tuple[int, ...]]) -> ir.Value:
        """The initializer that holds `values` packed, in the graph of the first, float32 initializers, those of
        `how.matrices` in order.

        `extents`: [k, n], or [n, k] if transposed, the matrix that the elements of each are in their order.
        """
        turned = tuple(transposed for _, transposed in how.matrices)
        panels = sum(-(-(size[0] if t else size[1]) // how.panel) for size, t in zip(extents, turned, strict=True))
        depth = extents[0][1] if how.transposed else extents[0][0]
        shape = (-(-depth // 2), how.panel, 2) if how.dtype == "bfloat16" else (depth, how.panel)
        first, *others = values

        def make(array: Array) -> Array:
            rest = [one.const_value.numpy() for one in others if one.const_value is not None]
            packed = [pack_columns(one.reshape(size), how.panel, t, how.dtype)
                      for one, size, t in zip((array, *rest), extents, turned, strict=True)]
            return packed[0] if len(packed) == 1 else np.concatenate(packed)

        key = (*others, *extents, turned, how.panel, how.dtype)
        return self._once(first, key, f"packed{how.panel}_{how.dtype}", (panels, *shape), make, _DTYPES[how.dtype])

    def filters(self, value: ir.Value, how: Filters) -> ir.Value:
        """The initializer that holds `value`, a constant of a convolution or of a matrix, laid out so; or `Decline`."""
        if value.const_value is None or value.shape is None or value.is_graph_input():
            raise Decline(f"the weights {value.name} are not constant")
        if how.kind in TABLES:
            return self._once(value, (how,), f"{how.kind}{how.panel}", table_extents(value.shape.numpy(), how),
                              lambda array: pack_table(array, how), table_dtype(value, how))
        return self._once(value, (how,), f"{how.kind}{how.panel}", packed_extents(value.shape.numpy(), how),
                          lambda array: pack_filters(array, how))

    def _once(self, value: ir.Value, how: tuple[Any, ...], suffix: str, extents: tuple[int, ...],
              make: Callable[[Array], Array], dtype: ir.DataType | None = None) -> ir.Value:
        if (value, *how) not in self._made:
            self._made[value, *how] = _register(value, suffix, extents, make, dtype)
        return self._made[value, *how]


def _register(value: ir.Value, suffix: str, extents: tuple[int, ...], make: Callable[[Array], Array],
              dtype: ir.DataType | None) -> ir.Value:
    """The new initializer, of the original's dtype where none is given."""
    graph, original = value.graph, value.const_value
    assert isinstance(graph, ir.Graph)
    assert original is not None
    name = f"{value.name}_{suffix}"
    while name in graph.initializers:
        name += "_"
    shape = ir.Shape(extents)
    dtype = dtype or original.dtype
    tensor = ir.LazyTensor(lambda: ir.tensor(make(original.numpy())), dtype=dtype, shape=shape, cache=False, name=name)
    made = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(made)
    return made
