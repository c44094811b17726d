"""Shapes of convolutions, pools and resizing, with symbolic spatial extents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.rewrites.normalise.infer.info import Context, Info, Rule, Shape
from tilegraph.spec.dims import Dim

_ONE = Dim.of(1)


def _kernel(c: Context, weight: Shape | None, spatial: int) -> list[MaybeDim] | None:
    given = c.attr("kernel_shape")
    if given is not None:
        return [Dim.of(int(k)) for k in given]
    return list(weight[2:]) if weight is not None and len(weight) == spatial + 2 else None


def _lists(c: Context, spatial: int) -> tuple[list[int], list[int], list[int]]:
    strides = list(c.attr("strides", [1] * spatial))
    dilations = list(c.attr("dilations", [1] * spatial))
    pads = list(c.attr("pads", [0] * (2 * spatial)))
    return strides, dilations, pads


def _windowed(c: Context, source: Shape, kernel: Sequence[MaybeDim]) -> list[MaybeDim]:
    """The spatial extents after sliding a window, rounding down."""
    spatial = len(kernel)
    strides, dilations, pads = _lists(c, spatial)
    auto = c.attr("auto_pad", "NOTSET")
    found: list[MaybeDim] = []
    for i, (dim, size) in enumerate(zip(source[2:], kernel, strict=True)):
        if dim is None or size is None:
            found.append(None)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            found.append(dim.ceildiv(strides[i]) if strides[i] != 1 else dim)
        else:
            padding = 0 if auto == "VALID" else pads[i] + pads[i + spatial]
            reach = dim + padding - ((size - 1) * dilations[i] + 1)
            found.append((reach if strides[i] == 1 else reach // strides[i]) + 1)
    return found


def _rounded_up(c: Context, source: Shape, kernel: Sequence[int]) -> list[MaybeDim]:
    """The same rounding up. ONNX Runtime leaves out a last window that starts in the padding behind the end, onnx's
    inference before opset 22 counts it: where they differ the extent is unknown, so that no other number is stated.
    No window of a symbolic extent does where the stride and the padding are no more than the window."""
    strides, dilations, pads = _lists(c, len(kernel))
    found: list[MaybeDim] = []
    for i, (dim, size) in enumerate(zip(source[2:], kernel, strict=True)):
        known, reach = None if dim is None else dim.as_int(), (size - 1) * dilations[i] + 1
        if dim is None or known is None:
            starts = strides[i] + pads[i + len(kernel)] <= reach
            up = strides[i] - 1 + pads[i] + pads[i + len(kernel)] - reach
            found.append((dim + up) // strides[i] + 1 if dim is not None and starts else None)
            continue
        room = known + pads[i] + pads[i + len(kernel)] - reach
        counted, inside = -(-room // strides[i]) + 1, -(-(known + pads[i]) // strides[i])
        found.append(Dim.of(min(counted, inside)) if room >= 0 and (c.opset >= 22 or counted <= inside) else None)
    return found


def conv(c: Context) -> Sequence[Info]:
    data, weight = c.input(0), c.input(1)
    if data.shape is None or len(data.shape) < 3:
        return [Info(data.dtype)]
    channels = weight.shape[0] if weight.shape else None
    kernel = _kernel(c, weight.shape, len(data.shape) - 2)
    if kernel is None or len(kernel) != len(data.shape) - 2:
        return [Info(data.dtype, (data.shape[0], channels, *[None] * (len(data.shape) - 2)))]
    return [Info(data.dtype, (data.shape[0], channels, *_windowed(c, data.shape, kernel)))]


def conv_transpose(c: Context) -> Sequence[Info]:
    data, weight = c.input(0), c.input(1)
    if data.shape is None or len(data.shape) < 3:
        return [Info(data.dtype)]
    spatial = len(data.shape) - 2
    channels = weight.shape[1] * int(c.attr("group", 1)) if weight.shape and weight.shape[1] is not None else None
    kernel = _kernel(c, weight.shape, spatial)
    strides, dilations, pads = _lists(c, spatial)
    extra = list(c.attr("output_padding", [0] * spatial))
    wanted, auto = c.attr("output_shape"), c.attr("auto_pad", "NOTSET")
    dims: list[MaybeDim] = []
    for i, dim in enumerate(data.shape[2:]):
        size = kernel[i] if kernel is not None and i < len(kernel) else None
        if wanted is not None:
            dims.append(Dim.of(int(wanted[len(wanted) - spatial + i])))
        elif dim is None or size is None:
            dims.append(None)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            dims.append(dim * strides[i])
        else:
            padding = 0 if auto == "VALID" else pads[i] + pads[i + spatial]
            dims.append((dim - 1) * strides[i] + extra[i] + (size - 1) * dilations[i] + 1 - padding)
    return [Info(data.dtype, (data.shape[0], channels, *dims))]


def pool(c: Context) -> Sequence[Info] | None:
    """Integers are onnx's inference's unless it rounds up; then symbolic extents are unknown."""
    data = c.input(0)
    kernel = c.attr("kernel_shape")
    if data.shape is None or kernel is None or len(data.shape) != len(kernel) + 2:
        return None
    given = c.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    ceil = bool(c.attr("ceil_mode", 0)) and given
    if not given and any(d != 1 for d in c.attr("dilations", ())):
        # ONNX Runtime pads as much as an undilated window needs, and has fewer results than ONNX says.
        shape = (*data.shape[:2], *[None] * len(kernel))
        return [Info(data.dtype, shape), *(Info(ir.DataType.INT64, shape) for _ in c.node.outputs[1:])]
    if not ceil and all(d is not None and d.is_static for d in data.shape[2:]):
        return None
    dims = _rounded_up(c, data.shape, kernel) if ceil else _windowed(c, data.shape, [Dim.of(int(k)) for k in kernel])
    shape = (data.shape[0], data.shape[1], *dims)
    return [Info(data.dtype, shape), *(Info(ir.DataType.INT64, shape) for _ in c.node.outputs[1:])]


def global_pool(c: Context) -> Sequence[Info]:
    data = c.input(0)
    if data.shape is None or len(data.shape) < 2:
        return [Info(data.dtype)]
    return [Info(data.dtype, (*data.shape[:2], *[_ONE] * (len(data.shape) - 2)))]


def depth_to_space(c: Context) -> Sequence[Info]:
    data, block = c.input(0), int(c.attr("blocksize"))
    if data.shape is None or len(data.shape) != 4:
        return [Info(data.dtype)]
    n, channels, h, w = data.shape
    if c.node.op_type == "DepthToSpace":
        spread = tuple(None if d is None else d * block for d in (h, w))
        return [Info(data.dtype, (n, None if channels is None else channels // (block * block), *spread))]
    shrunk = tuple(None if d is None else d // block for d in (h, w))
    return [Info(data.dtype, (n, None if channels is None else channels * (block * block), *shrunk))]


def resize(c: Context) -> Sequence[Info] | None:
    data = c.input(0)
    if data.shape is None:
        return [Info(data.dtype)]
    rank = len(data.shape)
    upsample = c.node.op_type == "Upsample" or c.opset < 11
    sizes_at, scales_at = (None, 1) if upsample else (3, 2)
    axes = list(c.attr("axes", range(rank)))
    dims = list(data.shape)
    if sizes_at is not None and c.has(sizes_at) and c.input(sizes_at).shape != (Dim.of(0),):
        sizes = c.input(sizes_at).dims()
        policy = c.attr("keep_aspect_ratio_policy", "stretch")
        for i, axis in enumerate(axes):
            dims[axis] = sizes[i] if sizes is not None and len(sizes) == len(axes) and policy == "stretch" else None
        return [Info(data.dtype, tuple(dims))]
    scales = _scales(c, scales_at)
    for i, axis in enumerate(axes):
        dims[axis] = None if scales is None or len(scales) != len(axes) else _scaled(data.shape[axis], scales[i])
    return [Info(data.dtype, tuple(dims))]


def _scales(c: Context, index: int) -> list[float] | None:
    given = c.attr("scales")
    if given is not None:
        return [float(np.float32(s)) for s in given]
    value = c.node.inputs[index] if index < len(c.node.inputs) else None
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return [float(s) for s in value.const_value.numpy()]


def _scaled(dim: MaybeDim, scale: float) -> MaybeDim:
    """floor(dim * scale) in single precision, as ONNX Runtime has it; symbolic for whole scales and 1/2, 1/4, ..."""
    if dim is None:
        return None
    size = dim.as_int()
    if size is not None:
        return Dim.of(int(np.floor(np.float32(size) * np.float32(scale))))
    if scale == int(scale):
        return dim * int(scale)
    inverse = 1 / scale
    # Only powers of two have an exact inverse, for which floor(dim * scale) is a floor division.
    return dim // int(inverse) if inverse == int(inverse) and int(inverse) & (int(inverse) - 1) == 0 else None


def attention(c: Context) -> Sequence[Info] | None:
    """Attention of opset 23 and later: output, present key, present value, scores."""
    q, k, v = c.input(0), c.input(1), c.input(2)
    if q.shape is None or k.shape is None or v.shape is None:
        return None
    past = c.input(4)
    past_v = c.input(5)
    if len(q.shape) == 4 and len(k.shape) == 4 and len(v.shape) == 4:
        batch, heads, length, kv_heads = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
        k_size, v_size = k.shape[3], v.shape[3]
        kv_length = k.shape[2]
        output: Shape = (batch, heads, length, v_size)
    elif len(q.shape) == 3 and len(k.shape) == 3 and len(v.shape) == 3:
        q_count, kv_count = int(c.attr("q_num_heads", 0)), int(c.attr("kv_num_heads", 0))
        if not q_count or not kv_count:
            return None
        batch, length, kv_length = q.shape[0], q.shape[1], k.shape[1]
        heads, kv_heads = Dim.of(q_count), Dim.of(kv_count)
        k_size, v_size = (None if d is None else d // kv_count for d in (k.shape[2], v.shape[2]))
        output = (batch, length, None if v_size is None else v_size * q_count)
    else:
        return None
    total = kv_length
    if past.shape is not None and len(past.shape) == 4:
        before = past.shape[2]
        total = None if before is None or kv_length is None else before + kv_length
    elif c.has(4):
        total = None
    shapes: list[Shape] = [output, (batch, kv_heads, total, k_size), (batch, kv_heads, total, v_size),
                           (batch, heads, length, total)]
    types = [q.dtype, past.dtype or k.dtype, past_v.dtype or v.dtype, q.dtype]
    return [Info(t, s) for t, s in zip(types, shapes, strict=True)][: len(c.node.outputs)]




RULES: dict[tuple[str, str], Rule] = {
    ("", op): rule
    for op, rule in {
        "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool, "LpPool": pool,
        "GlobalAveragePool": global_pool, "GlobalMaxPool": global_pool, "GlobalLpPool": global_pool,
        "DepthToSpace": depth_to_space, "SpaceToDepth": depth_to_space, "Resize": resize, "Upsample": resize,
        "Attention": attention,
    }.items()
}
