"""QuantizeLinear and DequantizeLinear with one scale, one along an axis, or one for each block along it."""

from __future__ import annotations

from tilegraph.ops.dtypes import is_float
from tilegraph.ops.index import Ix
from tilegraph.ops.lower.base import NodeContext, compute_dtype, point, view
from tilegraph.ops.lower.views import reshape
from tilegraph.ops.pointwise.convert import BFLOAT16, FLOAT16
from tilegraph.ops.prims import Prim
from tilegraph.spec.dims import Dim, Shape


def lower_quantize(c: NodeContext) -> list[Prim]:
    """Either operator; scale and zero point are spread over the data first, so that the axis never matters again.

    Declines what the operator table declines, and scales whose extents do not fit the axis for certain.
    """
    shape = c.arg(0).shape
    axis = int(c.attr("axis", 1))
    block = int(c.attr("block_size", 0) or 0)
    operands = [c.arg(0), _spread(c, c.arg(1), shape, axis, block)]
    if (zero := c.optional(2)) is not None:
        operands.append(_spread(c, zero, shape, axis, block))
    elif len(c.node.inputs) > 2 and c.node.inputs[2] is not None:
        c.arg(2)  # says why it could not be read
    attrs = {k: v for k, v in c.attrs().items() if k in ("output_dtype", "saturate", "precision")}
    if c.node.op_type == "QuantizeLinear" and (kind := _division(c)) is not None:
        attrs["divided"] = kind
    dtype = compute_dtype(c.node.outputs[0])
    if c.node.op_type == "DequantizeLinear" and not is_float(dtype):
        raise c.decline(f"DequantizeLinear to {dtype}")
    return [point(c.node.op_type, operands, dtype, attrs=attrs, opset=c.opset)]


def _division(c: NodeContext) -> int | None:
    """The 16-bit float in which x is divided: the scale's type from opset 23 on, unless `precision` says another.
    Before, ONNX Runtime divides in float32."""
    if c.opset < 23:
        return None
    scale = c.node.inputs[1]
    of_scale = int(scale.dtype) if scale is not None and scale.dtype is not None else 0
    kind = int(c.attr("precision", 0) or 0) or of_scale
    return kind if kind in (FLOAT16, BFLOAT16) else None


def _spread(c: NodeContext, scale: Prim, shape: Shape, axis: int, block: int) -> Prim:
    """`scale` so that it broadcasts to the data's `shape`."""
    rank = len(shape)
    if all(d == 1 for d in scale.shape) and not block:
        return reshape(scale, ())
    if not -rank <= axis < rank:
        raise c.decline(f"axis {axis} of data of rank {rank}")
    axis %= rank
    if not block:
        if len(scale.shape) != 1 or scale.shape[0] != shape[axis]:
            raise c.decline(f"scales of shape {[str(d) for d in scale.shape]} along an axis of {shape[axis]}")
        return reshape(scale, tuple(d if k == axis else Dim.of(1) for k, d in enumerate(shape)))
    if scale.shape != (*shape[:axis], shape[axis].ceildiv(block), *shape[axis + 1:]):
        raise c.decline(f"scales of shape {[str(d) for d in scale.shape]} for blocks of {block}")

    def pull(ix: tuple[Ix, ...]) -> tuple[Ix, ...]:
        return (*ix[:axis], ix[axis].floordiv(block), *ix[axis + 1:])

    return view(scale, shape, pull, f"blocks[{axis},{block}]{[str(d) for d in shape]}")
