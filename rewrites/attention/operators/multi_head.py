"""com.microsoft's MultiHeadAttention, as ONNX Runtime's CPU kernel computes it.

Taken apart: separate queries, keys and values [B, S, heads * D], keys and values that are split already (cross
attention), the bias of the projection, key padding masks of 0 and 1 ([B, T] or [B, S, T]), a bias of the scores,
unidirectional, past and present; float32, and float16 that is computed in float32 and rounded once. Left whole: packed
inputs, lengths as masks, shared buffers, beams, and scores as a result.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build, Part
from tilegraph.rewrites.attention.operators.core import from_float, merge_heads, split_heads, to_float, weighted

_FLOAT = ir.DataType.FLOAT
_LOWEST = float(np.finfo(np.float32).min)


def expand(b: Build) -> list[ir.Value | None]:
    q0, k0, v0 = b.needed(0, "query"), b.needed(1, "a separate key"), b.needed(2, "a separate value")
    for index, what in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if b.input(index) is not None:
            raise Decline(f"{what} says that past and present share a buffer")
    if b.wants(3):
        raise Decline("something reads the scores (qk)")
    if q0.dtype not in (_FLOAT, ir.DataType.FLOAT16):
        raise Decline("attention kernels read float32 and float16")
    heads = int(b.attr("num_heads", 0))
    q, k, v = q0, k0, v0
    biases = b.input(3)
    if b.rank(q0, "query") != 3:
        raise Decline("queries, keys and values are packed in one input")
    ready = b.rank(k0, "key") == 4
    if ready:
        if biases is not None:
            raise Decline("the bias of keys that are split into heads already")
    elif b.rank(k0, "key") != 3:
        raise Decline("keys and values are packed in one input")
    elif biases is not None:
        q, k, v = _biased(b, q0, k0, v0, biases)
    width = _extent(b, v0, 3 if ready else 2, "the values") // (1 if ready else heads)
    q = split_heads(b, q, heads, "query", like=q0)
    if not ready:
        k, v = split_heads(b, k, heads, "key", like=k0), split_heads(b, v, heads, "value", like=v0)
    past: Part = 0
    past_k, past_v = b.input(6), b.input(7)
    new = b.extent(k0, 2 if ready else 1)
    if past_k is not None and past_v is not None:
        if ready:
            raise Decline("past keys beside keys that are split into heads already")
        past = b.extent(past_k, 2)
        k, v = b.op("Concat", past_k, k, axis=2), b.op("Concat", past_v, v, axis=2)
    elif past_k is not None or past_v is not None:
        raise Decline("past_key and past_value go together")
    keys, queries = b.plus(past, new), b.extent(q0, 1)
    depth = _extent(b, q0, 2, "the queries") // heads
    if b.attr("unidirectional", 0) and (ready or not b.same(q0, 1, k0, 1)):
        raise Decline("unidirectional with keys that may be of another number than queries")
    mask, bias = padding_mask(b, b.input(4), keys, queries, past), b.input(5)
    present = (k, v)
    q, k, v = (to_float(b, value, q0) for value in (q, k, v))
    y = weighted(b, q, k, v, b.attr("scale", 0.0) or 1 / np.sqrt(np.float32(depth)),
                 [mask, bias if bias is None else to_float(b, bias, bias)])
    y = from_float(b, merge_heads(b, y, q0, heads, width), q0)
    return [y, present[0] if b.wants(1) else None, present[1] if b.wants(2) else None]


def _extent(b: Build, value: ir.Value, axis: int, what: str) -> int:
    size = b.known(value, axis)
    if size is None:
        raise Decline(f"the width of {what} is symbolic")
    return size


def _biased(b: Build, q: ir.Value, k: ir.Value, v: ir.Value, biases: ir.Value) -> list[ir.Value]:
    made, start = [], 0
    for value, what in ((q, "the queries"), (k, "the keys"), (v, "the values")):
        end = start + _extent(b, value, 2, what)
        made.append(b.op("Add", value, b.slice(biases, 0, start, end)))
        start = end
    return made


def padding_mask(b: Build, mask: ir.Value | None, keys: Part, queries: Part, past: Part) -> ir.Value | None:
    """What ONNX Runtime adds: `mask_filter_value` for padding; the lowest float, instead of it, for keys ahead."""
    value = None
    if mask is not None:
        rank = b.rank(mask, "the mask")
        if rank == 1:
            raise Decline("the mask holds lengths")
        if rank not in (2, 3):
            raise Decline(f"the mask has {rank} dims")
        hidden = b.op("Equal", mask, b.scalar(0, mask))
        low = b.scalar(float(b.attr("mask_filter_value", -10000.0)), _FLOAT)
        shown = b.op("Where", hidden, low, b.scalar(0.0, _FLOAT))
        parts: list[Part] = [b.extent(mask, axis) for axis in range(rank)]
        value = b.reshape(shown, *(parts[:1] + [1] * (4 - rank) + parts[1:]))
    if b.attr("unidirectional", 0) and queries != 1:
        ahead = causal(b, queries, keys, past)
        value = b.op("Where", ahead, b.scalar(_LOWEST, _FLOAT), b.scalar(0.0, _FLOAT) if value is None else value)
    return value


def causal(b: Build, queries: Part, keys: Part, past: Part) -> ir.Value:
    """Whether key j lies behind query i + past."""
    rows, columns = b.positions(queries, -1, 1), b.positions(keys, 1, -1)
    if past != 0:
        rows = b.op("Add", rows, b.vector(past))
    return b.op("Less", rows, columns)
