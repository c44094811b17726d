"""com.microsoft's GroupQueryAttention without past tokens: the first run over a prompt.

Taken apart: separate or packed inputs, causal with or without a window; soft cap, rotary embedding, a bias of the
scores, present keys and values. `seqlens_k` says which rows are padding at the right end; the operator leaves those
rows of its results unspecified, and no other row sees such keys. Left whole: past keys (where the new ones go depends
on run-time lengths, also with shared buffers), bidirectional (the lengths decide), attention sinks, quantised caches,
norms of queries and keys, interleaved rotary embedding, scores as a result.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.attention.operators.core import Bias, distance_mask, merge_heads, repeat_heads, weighted

_FLOAT = ir.DataType.FLOAT


def expand(b: Build) -> list[ir.Value | None]:
    q0 = b.needed(0, "query")
    if q0.dtype != _FLOAT:
        raise Decline("attention kernels are float32")
    for index, what in ((3, "past_key"), (4, "past_value"), (11, "head_sink"), (12, "k_scale"), (13, "v_scale"),
                        (14, "q_norm_weight"), (15, "k_norm_weight"), (16, "query_seqlens")):
        if b.input(index) is not None:
            raise Decline(f"{what} is given")
    for name in ("smooth_softmax", "sliding_window_cache", "qk_output"):
        if b.attr(name, 0) not in (0, -1):
            raise Decline(f"attribute {name} is {b.attr(name, 0)}")
    if b.wants(3):
        raise Decline("something reads the scores (output_qk)")
    heads, groups = int(b.attr("num_heads", 0)), int(b.attr("kv_num_heads", 0))
    if heads <= 0 or groups <= 0 or b.rank(q0, "query") != 3:
        raise Decline("the numbers of heads are not given, or queries are no [batch, sequence, width]")
    packed = b.input(1) is None
    width = b.known(q0, 2)
    if width is None or width % (heads + 2 * groups if packed else heads):
        raise Decline(f"the width {width} of the queries does not hold the heads")
    depth = width // (heads + 2 * groups if packed else heads)
    q, k, v = _heads(b, q0, heads, groups, depth)
    if b.attr("do_rotary", 0):
        q, k = _rotate(b, q, q0, heads, depth), _rotate(b, k, q0, groups, depth)
    present = (k, v)
    batch, length = b.extent(q0, 0), b.extent(q0, 1)
    k = repeat_heads(b, k, (batch, groups, length, depth), heads)
    v = repeat_heads(b, v, (batch, groups, length, depth), heads)
    bias = Bias(b, _FLOAT)
    window = int(b.attr("local_window_size", -1))
    if b.attr("causal", 1):
        distance_mask(b, bias, length, length, 0, ahead=0, behind=window - 1 if window > 0 else None)
    elif b.input(5) is not None:
        raise Decline("without a causal mask the lengths in seqlens_k decide which keys count")
    y = weighted(b, q, k, v, b.attr("scale", 0.0) or 1 / np.sqrt(np.float32(depth)), [b.input(10), bias.sum()],
                 float(b.attr("softcap", 0.0)))
    return [merge_heads(b, y, q0, heads, depth), present[0] if b.wants(1) else None,
            present[1] if b.wants(2) else None]


def _heads(b: Build, q0: ir.Value, heads: int, groups: int, depth: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """[B, heads, S, D] and twice [B, groups, S, D]."""
    batch, length = b.extent(q0, 0), b.extent(q0, 1)

    def laid(value: ir.Value, count: int) -> ir.Value:
        return b.op("Transpose", b.reshape(value, batch, length, count, depth), perm=[0, 2, 1, 3])

    if b.input(1) is not None:
        k0, v0 = b.needed(1, "key"), b.needed(2, "value")
        if b.rank(k0, "key") != 3 or b.known(k0, 2) != groups * depth or b.known(v0, 2) != groups * depth:
            raise Decline("keys or values are no [batch, sequence, kv_num_heads * depth]")
        if not (b.same(q0, 1, k0, 1) and b.same(q0, 1, v0, 1)):
            raise Decline("keys may be of another number than queries")
        return laid(q0, heads), laid(k0, groups), laid(v0, groups)
    ends = [heads * depth, (heads + groups) * depth, (heads + 2 * groups) * depth]
    parts = [b.slice(q0, 2, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return laid(parts[0], heads), laid(parts[1], groups), laid(parts[2], groups)


def _rotate(b: Build, value: ir.Value, q0: ir.Value, heads: int, depth: int) -> ir.Value:
    """Rotary embedding of [B, heads, S, D] at positions 0, 1, ... (a first run uses no others)."""
    cos, sin = b.needed(7, "cos_cache"), b.needed(8, "sin_cache")
    if b.input(9) is not None:
        raise Decline("position_ids are given")
    half = b.known(cos, 1)
    if half is None or 2 * half > depth:
        raise Decline("the width of cos_cache is symbolic or too large")
    length = b.vector(b.extent(q0, 1))
    cos, sin = (b.op("Slice", t, b.ints(0), length, b.ints(0)) for t in (cos, sin))
    if b.attr("rotary_interleaved", 0):
        raise Decline("interleaved rotary embedding")
    first, second = b.slice(value, 3, 0, half), b.slice(value, 3, half, 2 * half)
    turned = [b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin)),
              b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin))]
    rest = [b.slice(value, 3, 2 * half, depth)] if 2 * half < depth else []
    return b.op("Concat", *turned, *rest, axis=3)
