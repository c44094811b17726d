"""Normalisation over neighbouring channels (LRN), and the norm of a whole image (GlobalLpPool)."""

from __future__ import annotations

from collections.abc import Callable

from tilegraph.ops.lower.base import NodeContext, point, quotient, scalar
from tilegraph.ops.lower.pads import padded_with
from tilegraph.ops.lower.reductions import reduce_over
from tilegraph.ops.lower.views import take_range
from tilegraph.ops.prims import Prim

_WIDEST = 15  # channels of a window: each is a part of the kernel at both ends


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


def _global_lp_pool(c: NodeContext) -> list[Prim]:
    x, p = c.arg(0), int(c.attr("p", 2))
    axes = list(range(2, len(x.shape)))
    if p == 1:
        return [reduce_over(c, "sum", point("Abs", [x], x.dtype), axes, True)]
    if p != 2:
        raise c.decline(f"GlobalLpPool with p = {p}")
    return [point("Sqrt", [reduce_over(c, "sum", point("Mul", [x, x], x.dtype), axes, True)], x.dtype)]


LOCAL: dict[tuple[str, str], Callable[[NodeContext], list[Prim]]] = {
    ("", "LRN"): _lrn,
    ("", "GlobalLpPool"): _global_lp_pool,
}
