"""Shapes and contents of ops that make elements: constants, counts, fills, ranges, and places of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer import arith
from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.rewrites.normalise.infer.info import (
    CONTENT_TYPES,
    CONTENTS_LIMIT,
    Context,
    Info,
    Rule,
    contents_array,
    info_of_tensor,
    static_sizes,
)
from tilegraph.spec.dims import Dim


def constant(c: Context) -> Sequence[Info] | None:
    tensor = c.attr("value")
    if tensor is not None:
        return [info_of_tensor(tensor)]
    for name, dtype in (("value_int", ir.DataType.INT64), ("value_ints", ir.DataType.INT64)):
        given = c.attr(name)
        if given is not None:
            array = np.array(given, dtype=np.int64)
            shape = tuple(Dim.of(d) for d in array.shape)
            small = array.size <= CONTENTS_LIMIT
            elements = [Dim.of(int(e)) for e in array.reshape(-1)] if small else []
            return [Info(dtype, shape, contents_array(elements, array.shape) if small else None)]
    return None


def shape_op(c: Context) -> Sequence[Info]:
    shape = c.input(0).shape
    if shape is None:
        return [Info(ir.DataType.INT64, (None,))]
    rank = len(shape)
    start, end = int(c.attr("start", 0)), int(c.attr("end", rank))
    dims = shape[slice(*(min(max(i + rank if i < 0 else i, 0), rank) for i in (start, end)))]
    return [Info(ir.DataType.INT64, (Dim.of(len(dims)),), contents_array(dims))]


def size_op(c: Context) -> Sequence[Info]:
    shape = c.input(0).shape
    total = None if shape is None or None in shape else Dim.product(d for d in shape if d is not None)
    return [Info(ir.DataType.INT64, (), contents_array([total], ()))]


def constant_of_shape(c: Context) -> Sequence[Info]:
    tensor = c.attr("value")
    dtype = tensor.dtype if tensor is not None else ir.DataType.FLOAT
    dims = c.input(0).dims()
    if dims is None:
        count = static_sizes(c.input(0).shape)
        # A shape of no elements makes a scalar.
        return [Info(dtype, None if count is None or len(count) != 1 else (None,) * count[0])]
    shape = tuple(dims)
    contents = None
    sizes = static_sizes(shape)
    if dtype in CONTENT_TYPES and sizes is not None and math.prod(sizes) <= CONTENTS_LIMIT:
        element = Dim.of(int(tensor.numpy().reshape(-1)[0]))
        contents = contents_array([element] * math.prod(sizes), sizes)
    return [Info(dtype, shape, contents)]


def range_op(c: Context) -> Sequence[Info]:
    start, limit, delta = (c.input(i) for i in range(3))
    ends = [i.contents.reshape(-1)[0] if i.contents is not None and i.contents.size == 1 else None
            for i in (start, limit, delta)]
    first, last, step = ends
    if first is None or last is None or step is None or not step.is_static or step == 0:
        return [Info(start.dtype, (None,))]
    span = last - first if step.value > 0 else first - last
    count = span.ceildiv(abs(step.value)) if abs(step.value) != 1 else span
    count = count if arith.is_nonnegative(span) else arith.largest(count, Dim.of(0))
    contents = None
    size = count.as_int()
    if start.dtype in CONTENT_TYPES and size is not None and size <= CONTENTS_LIMIT:
        contents = contents_array([first + step * i for i in range(size)])
    return [Info(start.dtype, (count,), contents)]


def one_hot(c: Context) -> Sequence[Info]:
    indices, depth = c.input(0), c.input(1).dims()
    dtype = c.input(2).dtype
    if indices.shape is None:
        return [Info(dtype)]
    axis = c.axis(-1, len(indices.shape) + 1)
    extent = depth[0] if depth else None
    return [Info(dtype, (*indices.shape[:axis], extent, *indices.shape[axis:]))]


def non_zero(c: Context) -> Sequence[Info]:
    rank = c.input(0).rank
    # A scalar counts as a vector of one element.
    return [Info(ir.DataType.INT64, (None if rank is None else Dim.of(max(rank, 1)), _all_of_a_fill(c)))]


def _all_of_a_fill(c: Context) -> MaybeDim:
    """How many elements a ConstantOfShape of something other than 0 makes: exporters count so."""
    source, shape = c.node.inputs[0], c.input(0).shape
    producer = None if source is None else source.producer()
    fill = None if producer is None or producer.op_type != "ConstantOfShape" else producer.attributes.get("value")
    if fill is None or fill.is_ref() or shape is None or not bool(fill.as_tensor().numpy().all()):
        return None
    known = [d for d in shape if d is not None]
    return Dim.product(known) if len(known) == len(shape) else None


def eye_like(c: Context) -> Sequence[Info]:
    dtype = c.attr("dtype")
    return [Info(c.input(0).dtype if dtype is None else ir.DataType(dtype), c.input(0).shape)]


RULES: dict[tuple[str, str], Rule] = {
    ("", op): rule
    for op, rule in {
        "Constant": constant, "Shape": shape_op, "Size": size_op, "ConstantOfShape": constant_of_shape,
        "Range": range_op, "OneHot": one_hot, "NonZero": non_zero, "EyeLike": eye_like,
    }.items()
}
