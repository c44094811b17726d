"""What is known of a value, and what a rule sees of a node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.spec.dims import Dim

CONTENTS_LIMIT = 256  # elements; larger integer tensors are not followed element by element
CONTENT_TYPES = frozenset((ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL))

Shape = tuple[MaybeDim, ...]
Contents = npt.NDArray[np.object_]  # of Dim or None; bool as 0 and 1


@dataclass
class Info:
    """`dtype` and `shape` None: unknown. `contents`: the elements of a small int32, int64 or bool tensor."""

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    contents: Contents | None = None

    def __post_init__(self) -> None:
        if self.contents is None:
            return
        if self.contents.size > CONTENTS_LIMIT:
            self.contents = None
            return
        # Contents are exact, and integers wrap: what leaves its type is not known.
        ends = np.iinfo(np.int32 if self.dtype is ir.DataType.INT32 else np.int64)
        elements: list[MaybeDim] = list(self.contents.reshape(-1))
        inside = [e is not None and (not e.is_static or ends.min <= e.value <= ends.max) for e in elements]
        if not any(inside) and elements:  # an empty list of axes is known
            self.contents = None
        elif not all(inside):
            kept = [e if fits else None for e, fits in zip(elements, inside, strict=True)]
            self.contents = contents_array(kept, self.contents.shape)

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def dims(self) -> list[MaybeDim] | None:
        """The elements of a tensor of integers, flattened, for an input that is a list of extents or axes."""
        return None if self.contents is None else list(self.contents.reshape(-1))

    def ints(self) -> list[int] | None:
        """The same, when every element is an integer."""
        dims = self.dims()
        if dims is None or any(d is None or not d.is_static for d in dims):
            return None
        return [d.value for d in dims if d is not None]


def shape_of(shape: ir.Shape | None) -> Shape | None:
    if shape is None:
        return None
    return tuple(Dim.of(d) if isinstance(d, int) else None if d.value is None else Dim.of(d.value) for d in shape)


def static_sizes(shape: Shape | None) -> tuple[int, ...] | None:
    """The extents where all are numbers."""
    if shape is None or any(d is None or not d.is_static for d in shape):
        return None
    return tuple(d.value for d in shape if d is not None)


def to_ir_shape(shape: Shape) -> ir.Shape:
    dims: list[int | str | None] = []
    for d in shape:
        as_int = None if d is None else d.as_int()
        dims.append(None if d is None else str(d) if as_int is None else as_int)
    return ir.Shape(dims)


def contents_array(elements: Sequence[MaybeDim], shape: tuple[int, ...] | None = None) -> Contents:
    """An array of extents; numpy must not look inside them."""
    array = np.empty(len(elements), dtype=object)
    for i, element in enumerate(elements):
        array[i] = element
    return array if shape is None else array.reshape(shape)


def info_of_tensor(tensor: ir.TensorProtocol) -> Info:
    """What a constant tells; its data is read only when it is a small integer tensor."""
    shape = tuple(Dim.of(int(d)) for d in tensor.shape.numpy())
    contents = None
    if tensor.dtype in CONTENT_TYPES and math.prod(d.value for d in shape) <= CONTENTS_LIMIT:
        array = tensor.numpy()
        contents = contents_array([Dim.of(int(e)) for e in array.reshape(-1)], array.shape)
    return Info(tensor.dtype, shape, contents)


class Context:
    """One node as a rule sees it."""

    def __init__(self, node: ir.Node, inputs: list[Info | None], opset: int) -> None:
        self.node = node
        self.inputs = inputs
        self.opset = opset

    def input(self, index: int) -> Info:
        """The input, or one of which nothing is known when it is absent."""
        found = self.inputs[index] if index < len(self.inputs) else None
        return found if found is not None else Info()

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def attr(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.value

    def axis(self, default: int, rank: int) -> int:
        axis = int(self.attr("axis", default))
        return axis + rank if axis < 0 else axis

    def axes(self, index: int) -> list[int] | None:
        """`axes`, an attribute or the input at `index`: [] when absent, None when not constant."""
        given = self.attr("axes")
        if given is not None:
            return [int(a) for a in given]
        return self.input(index).ints() if self.has(index) else []


Rule = Callable[[Context], Sequence[Info] | None]


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values have one shape in every run, as far as inference knows."""
    left, right = shape_of(a.shape), shape_of(b.shape)
    return left is not None and left == right and None not in left
