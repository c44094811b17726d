"""Nodes that slide a window, as prims: Conv, MaxPool, AveragePool, global pooling; and Pad of channels."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.ops.conv.space import Axis, Window
from tilegraph.ops.index import Ix
from tilegraph.ops.lower import Rule
from tilegraph.ops.lower.base import NodeContext, view
from tilegraph.ops.prims import Const, Prim
from tilegraph.spec.dims import Dim, Shape

MAX_PLACES = 16  # of the source that count in one result of a transposed convolution, along a spatial dim


def _conv(c: NodeContext) -> list[Prim]:
    source, weights = c.arg(0), c.arg(1)
    _check_source(c, source)
    groups = int(c.attr("group", 1))
    kernel = [d.as_int() for d in weights.shape[2:]]
    filters, depth, channels = weights.shape[0].as_int(), weights.shape[1].as_int(), source.shape[1].as_int()
    if None in kernel or filters is None or depth is None or channels is None:
        raise c.decline("weights or channels have a symbolic extent")
    if weights.dtype != "float32" or depth * groups != channels or filters % groups:
        raise c.decline(f"weights {weights.dtype} of {filters}x{depth} in {groups} groups over {channels} channels")
    bias = c.arg(2) if len(c.node.inputs) > 2 and c.node.inputs[2] is not None else None
    axes = _axes(c, source.shape[2:], [int(k or 0) for k in kernel])
    shape = (source.shape[0], weights.shape[0], *(a.out for a in axes))
    return [Window(shape, "float32", kind="conv", source=source, weights=weights, bias=bias, axes=axes, groups=groups)]


def _conv_transpose(c: NodeContext) -> list[Prim]:
    """In one group, undilated, with pads that are given."""
    source, weights = c.arg(0), c.arg(1)
    _check_source(c, source)
    kernel = [d.as_int() for d in weights.shape[2:]]
    channels, filters = source.shape[1].as_int(), weights.shape[1].as_int()
    if None in kernel or filters is None or channels is None or weights.shape[0] != channels:
        raise c.decline("weights or channels have a symbolic extent, or do not belong together")
    rank = len(kernel)
    given = {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * (2 * rank), "output_padding": [0] * rank}
    strides, dilations, pads, more = ([int(v) for v in c.attr(name) or default] for name, default in given.items())
    groups, auto = int(c.attr("group", 1)), c.attr("auto_pad", "NOTSET")
    if groups != 1 or set(dilations) != {1} or c.attr("output_shape") or auto not in ("NOTSET", "VALID"):
        raise c.decline(f"ConvTranspose in {groups} groups, with dilations {dilations}, auto_pad {auto} or an "
                        "output_shape: kernels take one group, no dilation, and pads that are given")
    pads = pads if auto == "NOTSET" else [0] * (2 * rank)
    if min(pads) < 0:
        raise c.decline(f"negative pads {pads}")
    if weights.dtype != "float32":
        raise c.decline(f"weights {weights.dtype}")
    bias = c.arg(2) if len(c.node.inputs) > 2 and c.node.inputs[2] is not None else None
    found = []
    for n, (size, step, k) in enumerate(zip(source.shape[2:], strides, kernel, strict=True)):
        reach, taps = int(k or 0) + more[n] - pads[rank + n], -(-int(k or 0) // step)
        if int(k or 0) < step or reach > step * taps or taps > MAX_PLACES:
            raise c.decline(f"ConvTranspose with kernel {k}, stride {step}, output_padding {more[n]}: results of no "
                            f"element, or of more than {MAX_PLACES}")
        out = (size - 1) * step + reach - pads[n]
        if out.as_int() is not None and out.value < 1:
            raise c.decline(f"a result of {out} elements")
        found.append(Axis(size, out, Dim.of(int(k or 0)), step, 1, pads[n]))
    axes = tuple(found)
    shape = (source.shape[0], weights.shape[1], *(a.out for a in axes))
    return [Window(shape, "float32", kind="transposed", source=source, weights=weights, bias=bias, axes=axes)]


def _max_pool(c: NodeContext) -> list[Prim]:
    if len(c.node.outputs) > 1 and c.node.outputs[1].uses():
        raise c.decline("MaxPool whose positions are used")
    return [_pool(c, "max")]


def _average_pool(c: NodeContext) -> list[Prim]:
    include = bool(c.attr("count_include_pad", 0))
    if include and c.attr("ceil_mode", 0):
        raise c.decline("AveragePool that counts padding, with ceil_mode")
    return [_pool(c, "padded_average" if include else "average")]


def _pool(c: NodeContext, kind: str) -> Window:
    source = c.arg(0)
    _check_source(c, source)
    axes = _axes(c, source.shape[2:], [int(k) for k in c.attr("kernel_shape")])
    shape = (*source.shape[:2], *(a.out for a in axes))
    return Window(shape, "float32", kind=kind, source=source, axes=axes)


def _global_max_pool(c: NodeContext) -> list[Prim]:
    return [_global(c, "max")]


def _global_average_pool(c: NodeContext) -> list[Prim]:
    return [_global(c, "average")]


def _global(c: NodeContext, kind: str) -> Window:
    source = c.arg(0)
    _check_source(c, source)
    axes = tuple(Axis(d, Dim.of(1), d) for d in source.shape[2:])
    return Window((*source.shape[:2], *(Dim.of(1) for _ in axes)), "float32", kind=kind, source=source, axes=axes)


def _check_source(c: NodeContext, source: Prim) -> None:
    if source.dtype != "float32":
        raise c.decline(f"{c.node.op_type} of {source.dtype}: kernels are float32")
    if len(source.shape) not in (3, 4):
        raise c.decline(f"{c.node.op_type} with {len(source.shape) - 2} spatial dims; kernels take 1 or 2")


def _axes(c: NodeContext, sizes: Shape, kernel: Sequence[int]) -> tuple[Axis, ...]:
    """The spatial dims; `Decline` where the inferred extents are not those of the attributes."""
    rank = len(sizes)
    strides = [int(s) for s in c.attr("strides") or [1] * rank]
    dilations = [int(d) for d in c.attr("dilations") or [1] * rank]
    pads = _pads(c, sizes, kernel, strides, dilations)
    found = []
    for k, out in enumerate(c.output_shape()[2:]):
        reach = dilations[k] * (kernel[k] - 1) + 1
        size, padded = sizes[k].as_int(), sizes[k] + (pads[k] + pads[k + rank])
        want = (padded - reach).as_int()
        if size is not None and want is not None:
            ceil = bool(c.attr("ceil_mode", 0))
            count = (-(-want // strides[k]) if ceil else want // strides[k]) + 1
            if ceil and (count - 1) * strides[k] >= size + pads[k]:
                count -= 1  # a window that starts in the padding behind the end is left out
            if want < 0 or out != count:
                raise c.decline(f"{out} results were inferred where the attributes give {count}")
        elif not c.attr("ceil_mode", 0) and out not in c.rename.values():
            # By the extents of the source, which a kernel knows; those of the model's inputs it may not.
            out = (padded - reach) // strides[k] + 1
        found.append(Axis(sizes[k], out, Dim.of(kernel[k]), strides[k], dilations[k], pads[k]))
    return tuple(found)


def _pads(c: NodeContext, sizes: Shape, kernel: Sequence[int], strides: Sequence[int],
          dilations: Sequence[int]) -> list[int]:
    """All begins, then all ends."""
    auto = c.attr("auto_pad", "NOTSET")
    rank = len(sizes)
    if auto == "NOTSET":
        pads = [int(p) for p in c.attr("pads") or [0] * (2 * rank)]
        if min(pads) < 0:
            raise c.decline(f"negative pads {pads}, which ONNX Runtime refuses too")
        return pads
    if auto == "VALID":
        return [0] * (2 * rank)
    begins, ends = [], []
    for k, extent in enumerate(sizes):
        size = extent.as_int()
        if size is None and strides[k] != 1:
            raise c.decline(f"auto_pad {auto} of the symbolic extent {extent}")
        reach = dilations[k] * (kernel[k] - 1) + 1
        total = reach - 1 if size is None else max((-(-size // strides[k]) - 1) * strides[k] + reach - size, 0)
        small, large = total // 2, total - total // 2
        begins.append(small if auto == "SAME_UPPER" else large)
        ends.append(large if auto == "SAME_UPPER" else small)
    return begins + ends


def _pad(c: NodeContext) -> list[Prim]:
    """Zeros behind the channels of a window."""
    source = c.arg(0)
    pads = c.ints(1, "pads")
    value = c.optional(2)
    axes = c.ints(3) if len(c.node.inputs) > 3 else None
    rank = len(source.shape)
    zero = value is None or (isinstance(value, Const) and value.value == 0)
    wanted = pads is not None and axes is None and not any(p for k, p in enumerate(pads) if k != rank + 1)
    if c.attr("mode", "constant") != "constant" or not zero or not wanted or pads is None:
        raise c.decline("Pad that does more than add zero channels at the end")
    if not isinstance(source, Window) or pads[rank + 1] < 0:
        raise c.decline("channels that are added to something else than a window")
    shape = (source.shape[0], source.shape[1] + pads[rank + 1], *source.shape[2:])
    return [view(source, shape, _same, f"channels[{shape[1]}]")]


def _same(at: tuple[Ix, ...]) -> tuple[Ix, ...]:
    return at


WINDOWS: dict[tuple[str, str], Rule] = {
    ("", "Conv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "MaxPool"): _max_pool,
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global_average_pool,
    ("", "GlobalMaxPool"): _global_max_pool,
    ("", "Pad"): _pad,
}

