"""Sums over what lies around an element: LRN over channels, LpPool over a window, GlobalLpPool over an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from tilegraph.ops.lower.base import NodeContext, point, quotient, scalar
from tilegraph.ops.lower.pads import padded_with
from tilegraph.ops.lower.reductions import reduce_over
from tilegraph.ops.lower.sliding import window_axes
from tilegraph.ops.lower.views import take_range
from tilegraph.ops.prims import Prim

_WIDEST = 15  # channels of a window: each is a part of the kernel at both ends
_TAPS = 9  # elements of a window of LpPool: each is a load for each result, and padding makes a part of the kernel


def _lrn(c: NodeContext) -> list[Prim]:
    """x / (bias + alpha / size * sum of the squares of `size` neighbouring channels)^beta. x: [N, C, H, W]."""
    x, size = c.arg(0), int(c.attr("size"))
    if len(x.shape) != 4 or size % 2 == 0 or size > _WIDEST:
        raise c.decline(f"LRN over {size} channels of a value of {len(x.shape)} dims")
    square, half = point("Mul", [x, x], x.dtype), size // 2
    around = padded_with(square, 1, half, half, 0.0) if half else square
    total = take_range(around, 1, 0, 1, x.shape[1])
    for k in range(1, size):
        total = point("Add", [total, take_range(around, 1, k, 1, x.shape[1])], x.dtype)
    share = scalar(float(c.attr("alpha", 1e-4)) / size, x.dtype)
    base = point("Add", [point("Mul", [total, share], x.dtype), scalar(float(c.attr("bias", 1.0)), x.dtype)], x.dtype)
    beta = float(c.attr("beta", 0.75))
    if beta == 0.75:  # two roots instead of a logarithm and an exponential
        root = point("Sqrt", [base], x.dtype)
        return [quotient(x, point("Mul", [root, point("Sqrt", [root], x.dtype)], x.dtype))]
    return [point("Mul", [x, point("Pow", [base, scalar(-beta, x.dtype)], x.dtype)], x.dtype)]


def _lp_pool(c: NodeContext) -> list[Prim]:
    """(sum of |x|^p over a window)^(1/p), padding being 0. x: [N, C, *sizes]."""
    x, kernel = c.arg(0), [int(k) for k in c.attr("kernel_shape")]
    if math.prod(kernel) > _TAPS:
        raise c.decline(f"LpPool over a window of {math.prod(kernel)} elements: kernels take up to {_TAPS}")
    axes = window_axes(c, x.shape[2:], kernel)
    around = _power(c, x)
    for n, a in enumerate(axes):
        end = ((a.out - 1) * a.stride + (a.kernel - 1) * a.dilation + 1 - a.size - a.before).as_int()
        if end is None:
            raise c.decline(f"LpPool of the symbolic extent {a.size} with stride {a.stride}")
        if a.before or end > 0:
            around = padded_with(around, 2 + n, a.before, max(end, 0), 0.0)
    total: Prim | None = None
    for taps in itertools.product(*(range(k) for k in kernel)):
        part = around
        for n, (k, a) in enumerate(zip(taps, axes, strict=True)):
            part = take_range(part, 2 + n, k * a.dilation, a.stride, a.out)
        total = part if total is None else point("Add", [total, part], x.dtype)
    assert total is not None
    return [_root(c, total)]


def _global_lp_pool(c: NodeContext) -> list[Prim]:
    x = c.arg(0)
    return [_root(c, reduce_over("sum", _power(c, x), list(range(2, len(x.shape))), True))]


def _power(c: NodeContext, x: Prim) -> Prim:
    """|x|^p of a pool's p."""
    p = int(c.attr("p", 2))
    if p < 1:
        raise c.decline(f"{c.node.op_type} with p = {p}")
    if p == 2:
        return point("Mul", [x, x], x.dtype)
    size = point("Abs", [x], x.dtype)
    return size if p == 1 else point("Pow", [size, scalar(float(p), x.dtype)], x.dtype)


def _root(c: NodeContext, total: Prim) -> Prim:
    """total^(1/p)."""
    p = int(c.attr("p", 2))
    if p <= 2:
        return total if p == 1 else point("Sqrt", [total], total.dtype)
    return point("Pow", [total, scalar(1 / p, total.dtype)], total.dtype)


LOCAL: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "LRN"): _lrn,
    ("", "LpPool"): _lp_pool,
    ("", "GlobalLpPool"): _global_lp_pool,
}
