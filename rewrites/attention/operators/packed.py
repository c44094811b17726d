"""com.microsoft's Attention: one projection to queries, keys and values, then what MultiHeadAttention does.

Taken apart: masks [B, T] and [B, S, T] of 0 and 1, a bias of the scores, unidirectional, unequal hidden sizes. Left
whole: past and present (which are stacked in one tensor), lengths as masks, rotary embedding.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.attention.operators.core import merge_heads, weighted
from tilegraph.rewrites.attention.operators.multi_head import padding_mask

_FLOAT = ir.DataType.FLOAT


def expand(b: Build) -> list[ir.Value | None]:
    x, weights = b.needed(0, "input"), b.needed(1, "weights")
    if x.dtype != _FLOAT:
        raise Decline("attention kernels are float32")
    for index, what in ((4, "past"), (6, "past_sequence_length")):
        if b.input(index) is not None:
            raise Decline(f"{what} is given: past keys and values are stacked in one tensor")
    if b.wants(1):
        raise Decline("something reads present, where keys and values are stacked in one tensor")
    if b.attr("do_rotary", 0):
        raise Decline("rotary embedding")
    heads, total = int(b.attr("num_heads", 0)), b.known(weights, 1)
    if heads <= 0 or total is None or b.rank(x, "input") != 3:
        raise Decline("the number of heads or the width of the weights is unknown")
    sizes = [int(s) for s in b.attr("qkv_hidden_sizes", ())] or [total // 3] * 3
    if sum(sizes) != total or len(sizes) != 3 or any(s % heads for s in sizes):
        raise Decline(f"{heads} heads do not divide the hidden sizes {sizes}")
    made = b.op("MatMul", x, weights)
    if b.input(2) is not None:
        made = b.op("Add", made, b.input(2))
    batch, length = b.extent(x, 0), b.extent(x, 1)
    parts, start = [], 0
    for size in sizes:
        part = b.slice(made, 2, start, start + size)
        laid = b.reshape(part, batch, length, heads, size // heads)
        parts.append(b.op("Transpose", laid, perm=[0, 2, 1, 3]))
        start += size
    scale = b.attr("scale", 0.0) or 1 / np.sqrt(np.float32(sizes[0] // heads))
    q, k, v = parts
    y = weighted(b, q, k, v, scale, [padding_mask(b, b.input(3), length, length, 0), b.input(5)])
    return [merge_heads(b, y, x, heads, sizes[2] // heads)]
