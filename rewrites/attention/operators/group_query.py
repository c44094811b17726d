"""com.microsoft's GroupQueryAttention: the first run over a prompt, and runs with past tokens.

Taken apart: separate or packed inputs, causal with or without a window; soft cap, rotary embedding, a bias of the
scores, present keys and values. Without past keys, `seqlens_k` says which rows are padding at the right end; the
operator leaves those rows of its results unspecified, and no other row sees such keys.

With past keys [B, G, P, D] only a run's lengths say where the new ones go: behind all P if every sequence has P + S
tokens, somewhere in between if some have fewer, or if the caller gave one longer buffer for past and present. So the
graph asks on every run, with an If: where `seqlens_k` and `total_sequence_length` all say P + S, the nodes below run;
where not, the operator itself. What it refuses with an error (more tokens than rows of `cos_cache`) goes to it too.

Left whole: bidirectional (the lengths decide), attention sinks, quantised caches, norms of queries and keys, positions
for the rotary embedding and, without past, interleaved ones, scores as a result, and a present that is declared to be
as long as the past (one buffer for both).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build, Part
from tilegraph.rewrites.attention.operators.core import Bias, distance_mask, merge_heads, repeat_heads, weighted

_FLOAT = ir.DataType.FLOAT


def expand(b: Build) -> list[ir.Value | None]:
    q0 = b.needed(0, "query")
    if q0.dtype != _FLOAT:
        raise Decline("attention kernels are float32")
    for index, what in ((11, "head_sink"), (12, "k_scale"), (13, "v_scale"),
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
    past_k, past_v = b.input(3), b.input(4)
    if (past_k is None) != (past_v is None):
        raise Decline("past_key and past_value go together")
    if past_k is None or past_v is None:
        return _attention(b, q0, (heads, groups, depth), None)
    _check_past(b, (past_k, past_v), groups, depth)
    condition = _behind_past(b, q0, past_k)
    first = len(b.made)
    return b.unless(condition, first, _attention(b, q0, (heads, groups, depth), (past_k, past_v)))


def _attention(b: Build, q0: ir.Value, sizes: tuple[int, int, int],
               past: tuple[ir.Value, ir.Value] | None) -> list[ir.Value | None]:
    """The results; `sizes`: heads, heads of keys, depth. `past`: keys and values that the new ones are put behind."""
    heads, groups, depth = sizes
    offset: Part = 0 if past is None else b.extent(past[0], 2)
    q, k, v = _heads(b, q0, heads, groups, depth, offset if past is not None else None)
    if b.attr("do_rotary", 0) and past is None:
        q, k = _rotate(b, q, q0, heads, depth), _rotate(b, k, q0, groups, depth)
    if past is not None:
        k, v = b.op("Concat", past[0], k, axis=2), b.op("Concat", past[1], v, axis=2)
    present = (k, v)
    batch, length = b.extent(q0, 0), b.extent(q0, 1)
    keys = b.plus(offset, length)
    k = repeat_heads(b, k, (batch, groups, keys, depth), heads)
    v = repeat_heads(b, v, (batch, groups, keys, depth), heads)
    bias = Bias(b, _FLOAT)
    window = int(b.attr("local_window_size", -1))
    if b.attr("causal", 1):
        distance_mask(b, bias, length, keys, offset, ahead=0, behind=window - 1 if window > 0 else None)
    elif past is not None or b.input(5) is not None:
        raise Decline("without a causal mask the lengths in seqlens_k decide which keys count")
    y = weighted(b, q, k, v, b.attr("scale", 0.0) or 1 / np.sqrt(np.float32(depth)), [b.input(10), bias.sum()],
                 float(b.attr("softcap", 0.0)))
    return [merge_heads(b, y, q0, heads, depth), present[0] if b.wants(1) else None,
            present[1] if b.wants(2) else None]


def _check_past(b: Build, past: tuple[ir.Value, ir.Value], groups: int, depth: int) -> None:
    for value, output, what in zip(past, (1, 2), ("key", "value"), strict=True):
        if value.dtype != _FLOAT:
            raise Decline(f"past_{what} is no float32")
        if b.rank(value, f"past_{what}") != 4 or b.known(value, 1) != groups or b.known(value, 3) != depth:
            raise Decline(f"past_{what} is no [batch, kv_num_heads, past, depth]")
        present = b.node.outputs[output] if output < len(b.node.outputs) else None
        if present is not None and present.shape is not None and len(present.shape) == 4 \
                and b.same(value, 2, present, 2):
            raise Decline(f"present_{what} is declared as long as past_{what}: one buffer for both, in which run-time "
                          "lengths say where new keys go")
    if not b.same(past[0], 2, past[1], 2):
        raise Decline("past_key and past_value may be of different lengths")
    if b.input(5) is None or b.input(6) is None:
        raise Decline("seqlens_k and total_sequence_length are not given")


def _behind_past(b: Build, q0: ir.Value, past_k: ir.Value) -> ir.Value:
    """Whether the new keys of every sequence come behind all of the past, and the tables of angles reach so far."""
    lengths, total = b.needed(5, "seqlens_k"), b.needed(6, "total_sequence_length")
    one = b.const(np.array([1], np.int32))
    last = b.op("Sub", b.op("Reshape", total, b.ints(1)), one)  # seqlens_k counts without the last token
    said = b.op("Concat", b.op("Reshape", lengths, b.ints(-1)), last, axis=0)
    keys = b.vector(b.plus(b.extent(past_k, 2), b.extent(q0, 1)))
    have = b.op("Sub", b.op("Cast", keys, to=ir.DataType.INT32), one)
    same = b.op("Cast", b.op("Equal", said, have), to=ir.DataType.INT32)
    flag = b.op("ReduceMin", same, b.ints(0), keepdims=0) if b.opset >= 18 else \
        b.op("ReduceMin", same, axes=[0], keepdims=0)
    condition = b.op("Cast", flag, to=ir.DataType.BOOL)
    if b.attr("do_rotary", 0):
        for index, what in ((7, "cos_cache"), (8, "sin_cache")):
            rows = b.vector(b.extent(b.needed(index, what), 0))
            fits = b.op("Not", b.op("Less", rows, keys))
            condition = b.op("And", condition, b.op("Reshape", fits, b.ints()))
    return condition


def _heads(b: Build, q0: ir.Value, heads: int, groups: int, depth: int,
           past: Part | None) -> tuple[ir.Value, ir.Value, ir.Value]:
    """[B, heads, S, D] and twice [B, groups, S, D]; queries and keys turned if there is a `past`."""
    batch, length = b.extent(q0, 0), b.extent(q0, 1)

    def laid(value: ir.Value, count: int) -> ir.Value:
        return b.op("Transpose", b.reshape(value, batch, length, count, depth), perm=[0, 2, 1, 3])

    def turned(value: ir.Value, count: int) -> ir.Value:
        if past is None or not b.attr("do_rotary", 0):
            return value
        return _turned(b, value, count, depth, past)

    if b.input(1) is not None:
        k0, v0 = b.needed(1, "key"), b.needed(2, "value")
        if b.rank(k0, "key") != 3 or b.known(k0, 2) != groups * depth or b.known(v0, 2) != groups * depth:
            raise Decline("keys or values are no [batch, sequence, kv_num_heads * depth]")
        if not (b.same(q0, 1, k0, 1) and b.same(q0, 1, v0, 1)):
            raise Decline("keys may be of another number than queries")
        return laid(turned(q0, heads), heads), laid(turned(k0, groups), groups), laid(v0, groups)
    ends = [heads * depth, (heads + groups) * depth, (heads + 2 * groups) * depth]
    parts = [b.slice(q0, 2, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return laid(turned(parts[0], heads), heads), laid(turned(parts[1], groups), groups), laid(parts[2], groups)


def _tables(b: Build, depth: int) -> tuple[ir.Value, ir.Value, int]:
    """Cosines and sines [rows, half], and half of what is turned of each head."""
    cos, sin = b.needed(7, "cos_cache"), b.needed(8, "sin_cache")
    if b.input(9) is not None:
        raise Decline("position_ids are given")
    half = b.known(cos, 1)
    if half is None or 2 * half > depth:
        raise Decline("the width of cos_cache is symbolic or too large")
    return cos, sin, half


def _turned(b: Build, value: ir.Value, heads: int, depth: int, past: Part) -> ir.Value:
    """Rotary embedding of [B, S, heads * D] behind `past` tokens, by an operator of its own, which computes as this one
    does inside: present keys are then the same bits."""
    cos, sin, half = _tables(b, depth)
    part = {} if 2 * half == depth else {"rotary_embedding_dim": 2 * half}
    return b.op("RotaryEmbedding", value, b.vector(past), cos, sin, domain="com.microsoft", num_heads=heads,
                interleaved=int(b.attr("rotary_interleaved", 0)), **part)


def _rotate(b: Build, value: ir.Value, q0: ir.Value, heads: int, depth: int) -> ir.Value:
    """Rotary embedding of [B, heads, S, D] at positions 0, 1, ... (a first run uses no others)."""
    cos, sin, half = _tables(b, depth)
    length = b.vector(b.extent(q0, 1))
    cos, sin = (b.op("Slice", t, b.ints(0), length, b.ints(0)) for t in (cos, sin))
    if b.attr("rotary_interleaved", 0):
        raise Decline("interleaved rotary embedding")
    first, second = b.slice(value, 3, 0, half), b.slice(value, 3, half, 2 * half)
    turned = [b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin)),
              b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin))]
    rest = [b.slice(value, 3, 2 * half, depth)] if 2 * half < depth else []
    return b.op("Concat", *turned, *rest, axis=3)
