"""New constants that take the place of old ones, within the limit on what folding may add to a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.passes.base import PassContext
from tilegraph.rewrites.normalise.edit import Names, constant_of
from tilegraph.rewrites.normalise.fold import GROWTH_KEY

Array = npt.NDArray[Any]

FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE))


class Constants:
    """Makes initializers. One account with constant folding: `context.fold_limit_bytes` for the whole model."""

    def __init__(self, model: ir.Model, context: PassContext) -> None:
        self.model = model
        self.limit = context.fold_limit_bytes
        self.names = Names(model)

    def refusal(self, node: ir.Node, old: ir.Value, nbytes: int) -> str | None:
        """Why a constant of `nbytes` may not replace `old` as an input of `node`; None if it may.

        The old one is freed if nobody else reads it; a memory-mapped one costs no memory, so freeing it gains none.
        """
        added = nbytes - self._freed(node, old)
        if added > 0 and self._total() + added > self.limit:
            return f"a copy of the weights '{old.name}' would add {added} bytes, beyond the limit of {self.limit}"
        return None

    def replace(self, node: ir.Node, index: int, array: Array, dtype: ir.DataType) -> None:
        """Makes `array` (rounded to `dtype`) the input `index` of `node`, which may have had none."""
        old = node.inputs[index] if index < len(node.inputs) else None
        freed = 0 if old is None else self._freed(node, old)
        base = node.name if old is None else old.name
        value = self.make(f"{base}_scaled" if old is not None else f"{base}_bias", array, dtype)
        self.model.graph.meta[GROWTH_KEY] = max(self._total() - freed, 0)
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        node.replace_input_with(index, value)

    def make(self, name: str, array: Array, dtype: ir.DataType) -> ir.Value:
        """A new initializer of the main graph, which subgraphs see too."""
        data = np.array(array, dtype=dtype.numpy(), order="C")
        name = self.names.value(name)
        tensor = ir.Tensor(data, dtype=dtype, name=name)
        value = ir.Value(name=name, shape=ir.Shape(data.shape), type=ir.TensorType(dtype), const_value=tensor)
        self.model.graph.register_initializer(value)
        self.model.graph.meta[GROWTH_KEY] = self._total() + data.nbytes
        return value

    def _total(self) -> int:
        return int(self.model.graph.meta.get(GROWTH_KEY, 0))

    def _freed(self, node: ir.Node, old: ir.Value) -> int:
        tensor = constant_of(old)
        if tensor is None or isinstance(tensor, ir.ExternalTensor) or old.is_graph_output():
            return 0
        return 0 if any(user is not node for user, _ in old.uses()) else int(tensor.nbytes)


def floats(value: ir.Value | None) -> Array | None:
    """A constant of float32 or float64, as float64; None for anything else.

    Half types are left out: rounding a folded weight to 11 or 8 bits is an error that the unfolded model, which
    computes in float32, does not make.
    """
    tensor = constant_of(value)
    if tensor is None or tensor.dtype not in FLOATS:
        return None
    return tensor.numpy().astype(np.float64)


def fits(array: Array, dtype: ir.DataType) -> bool:
    """Whether every element is finite after rounding to `dtype`."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(array.astype(dtype.numpy())).all())
