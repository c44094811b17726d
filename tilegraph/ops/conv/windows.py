"""Nodes that slide a window, as prims: Conv, MaxPool, AveragePool, global pooling; and Pad of channels."""

from __future__ import annotations

from tilegraph.ops.conv.space import Window
from tilegraph.ops.index import Ix
from tilegraph.ops.lower import Rule
from tilegraph.ops.lower.base import NodeContext, view
from tilegraph.ops.lower.sliding import Axis, window_axes
from tilegraph.ops.prims import Const, Prim
from tilegraph.spec.dims import Dim

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
    axes = window_axes(c, source.shape[2:], [int(k or 0) for k in kernel])
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
    if not include or not c.attr("ceil_mode", 0):
        return [_pool(c, "padded_average" if include else "average")]
    pool = _pool(c, "average")  # where nothing is padded there is nothing to count
    if any(a.before for a in pool.axes) or not all(_ends_inside(a) for a in pool.axes):
        raise c.decline("AveragePool that counts padding, with ceil_mode and windows that reach into it")
    return [pool]


def _ends_inside(axis: Axis) -> bool:
    """Whether the last window ends with the line or before."""
    end = (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1 - axis.size
    return end.is_static and end.value <= 0


def _pool(c: NodeContext, kind: str) -> Window:
    source = c.arg(0)
    _check_source(c, source)
    axes = window_axes(c, source.shape[2:], [int(k) for k in c.attr("kernel_shape")])
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

