"""Shape inference as a pass: types and shapes on every value, symbolic where they must be.

Handles chains of Shape, Gather, Slice, Concat, Squeeze, Unsqueeze, Cast, arithmetic, Where, Expand, Range and Reshape
by following the elements of small integer tensors as expressions of the input extents. Extents that depend on data
(NonZero, a Loop that grows a tensor) stay unknown. A declared shape that contradicts the inference is replaced and
reported; see `infer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import constant_of
from tilegraph.rewrites.normalise.infer import Info, infer
from tilegraph.rewrites.normalise.infer.info import shape_of, static_sizes, to_ir_shape
from tilegraph.spec.dims import Dim

_CONTENTS = "tilegraph.contents"


def symbolic_contents(value: ir.Value) -> tuple[Dim | None, ...] | None:
    """The elements of a small integer or bool tensor, flattened, as the last run of `Shapes` found them.

    Symbolic ones are expressions of the input extents, unknown ones None; bools are 0 and 1. None for values that
    were not followed (floats, more than 256 elements, nothing known).
    """
    found: tuple[Dim | None, ...] | None = value.meta.get(_CONTENTS)
    return found


def known_contents(value: ir.Value) -> npt.NDArray[Any] | None:
    """The value as the last run of `Shapes` found it, when all of it is integers or bools."""
    elements, sizes = static_sizes(symbolic_contents(value)), static_sizes(shape_of(value.shape))
    if elements is None or sizes is None or value.dtype is None:
        return None
    return np.array(elements, dtype=np.int64).astype(value.dtype.numpy()).reshape(sizes)


def known_integer(value: ir.Value) -> int | None:
    """The one element of an integer or bool tensor that no input of the model decides; bools are 0 and 1."""
    tensor = constant_of(value)
    if tensor is not None and tensor.size == 1:
        return int(tensor.numpy().reshape(-1)[0])
    contents = symbolic_contents(value)
    if contents is None or len(contents) != 1 or contents[0] is None or value.is_graph_input():
        return None
    return contents[0].value if contents[0].is_static else None


class Shapes(Pass):
    """Writes what `infer` finds to `value.type`, `value.shape` and `symbolic_contents`."""

    name = "shapes"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        found = infer(model)
        modified = False
        fixed = set(model.graph.inputs)
        for value, info in found.infos.items():
            modified |= value not in fixed and _write(value, info)
        for value, (inferred, declared) in found.conflicts.items():
            context.diagnostics.took(
                self.name, value.name or "", f"declared shape {_text(declared)} is stale, inferred {_text(inferred)}")
        return PassResult(modified)


def _write(value: ir.Value, info: Info) -> bool:
    contents = None if info.contents is None else tuple(info.contents.reshape(-1))
    if value.meta.get(_CONTENTS) != contents:
        value.meta[_CONTENTS] = contents
    modified = False
    if info.dtype is not None and value.dtype != info.dtype:
        value.type = ir.TensorType(info.dtype)
        modified = True
    shape = None if info.shape is None else to_ir_shape(info.shape)
    if (shape is None) != (value.shape is None) or (shape is not None and shape != value.shape):
        if isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
            return modified
        value.shape = shape
        modified = True
    return modified


def _text(shape: tuple[Dim | None, ...]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
