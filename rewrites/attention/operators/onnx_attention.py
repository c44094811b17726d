"""ONNX's Attention, opsets 23 to 25, as the function body of its definition computes it.

Taken apart: 3-D and 4-D inputs, grouped heads, float and bool masks (also shorter than the keys), causal and windowed,
soft cap, past and present keys and values, lengths without padding; float32, and float16 that is computed in float32
and rounded once. Left whole: other dtypes (ONNX Runtime cannot run bfloat16), a softmax in another precision, and
scores as a result (`qk_matmul_output`), which a fused kernel never holds.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build, Part
from tilegraph.rewrites.attention.operators.core import (
    INF,
    Bias,
    attend,
    distance_mask,
    from_float,
    merge_heads,
    repeat_heads,
    root_of_scale,
    split_heads,
    to_float,
)

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def expand(b: Build) -> list[ir.Value | None]:
    q0, k0, v0 = b.needed(0, "Q"), b.needed(1, "K"), b.needed(2, "V")
    for value, what in ((q0, "Q"), (k0, "K"), (v0, "V")):
        if value.dtype not in (_FLOAT, _HALF):
            raise Decline(f"{what} is {_name(value.dtype)}: attention kernels read float32 and float16")
        if value.dtype != q0.dtype:
            raise Decline(f"{what} is {_name(value.dtype)}, Q {_name(q0.dtype)}")
    if b.attr("softmax_precision", _FLOAT.value) not in (0, _FLOAT.value, q0.dtype.value if q0.dtype else 0):
        raise Decline("the softmax is computed in another precision than float32")
    if b.wants(3):
        raise Decline("something reads the scores (qk_matmul_output)")
    q, k, v = (_heads(b, value, name, what) for value, name, what in
               ((q0, "q_num_heads", "Q"), (k0, "kv_num_heads", "K"), (v0, "kv_num_heads", "V")))
    past_k, past_v = b.input(4), b.input(5)
    lengths = b.input(6)
    if (past_k is None) != (past_v is None):
        raise Decline("past_key and past_value go together")
    past: Part = 0
    queries, new = b.extent(q0, -2 % b.rank(q0, "Q")), b.extent(k0, -2 % b.rank(k0, "K"))
    if past_k is not None and past_v is not None:
        if lengths is not None:
            raise Decline("nonpad_kv_seqlen and past_key exclude each other")
        past = b.extent(past_k, 2)
        k, v = b.op("Concat", past_k, k, axis=2), b.op("Concat", past_v, v, axis=2)
    present = (k, v)
    q, k, v = (to_float(b, value, q0) for value in (q, k, v))
    keys = b.plus(past, new)
    heads, groups = _count(b, q0, "q_num_heads"), _count(b, k0, "kv_num_heads")
    batch = b.extent(q0, 0)
    depth, width = _size(b, k0, groups), _size(b, v0, groups)
    k = repeat_heads(b, k, (batch, groups, keys, depth), heads)
    v = repeat_heads(b, v, (batch, groups, keys, width), heads)
    root = root_of_scale(b, b.attr("scale", None), depth, _FLOAT)
    bias = _bias(b, keys, queries, past, lengths)
    left = int(b.attr("left_window_size", -1))
    ends_at_last = left < 0 or b.same(q0, -2 % b.rank(q0, "Q"), k0, -2 % b.rank(k0, "K"))
    every_row_has_a_key = b.input(3) is None and lengths is None and ends_at_last
    y = attend(b, q, k, v, root, softcap=float(b.attr("softcap", 0.0)), bias=bias, guarded=not every_row_has_a_key)
    if b.rank(q0, "Q") == 3:
        y = merge_heads(b, y, q0, heads, width)
    return [from_float(b, y, q0), present[0] if b.wants(1) else None, present[1] if b.wants(2) else None]


def _bias(b: Build, keys: Part, queries: Part, past: Part, lengths: ir.Value | None) -> ir.Value | None:
    bias = Bias(b, _FLOAT)
    mask = b.input(3)
    if mask is not None:
        bias.add(_mask(b, mask, keys))
    offset: ir.Value | Part = past
    if lengths is not None:
        of_batch = b.reshape(lengths, -1, 1, 1, 1)
        offset = b.op("Sub", of_batch, b.vector(queries))
    left, right = int(b.attr("left_window_size", -1)), int(b.attr("right_window_size", -1))
    ahead = [0] * bool(b.attr("is_causal", 0)) + [right] * (right >= 0)
    distance_mask(b, bias, queries, keys, offset, ahead=min(ahead, default=None), behind=left if left >= 0 else None)
    if lengths is not None:
        columns = b.positions(keys, 1, -1)
        bias.hide(b.op("Not", b.op("Less", columns, b.reshape(lengths, -1, 1, 1, 1))))
    return bias.sum()


def _mask(b: Build, mask: ir.Value, keys: Part) -> ir.Value:
    """The mask as a float to be added, filled up with minus infinity where it is shorter than the keys."""
    rank = b.rank(mask, "attn_mask")
    if mask.dtype == ir.DataType.BOOL:
        value = b.op("Where", mask, b.scalar(0.0, _FLOAT), b.scalar(-INF, _FLOAT))
    elif mask.dtype in (_FLOAT, _HALF):
        value = to_float(b, mask, mask)
    else:
        raise Decline(f"attn_mask is {_name(mask.dtype)}")
    if rank == 0:
        raise Decline("attn_mask has no dims")
    have = b.known(mask, rank - 1)
    if have is not None and have == keys:
        return value
    if have is None and _equal(b, mask, rank - 1):
        return value
    if have == 1:
        raise Decline("whether attn_mask of one column is broadcast or filled up is not the same everywhere")
    missing = b.op("Sub", b.vector(keys), b.vector(b.extent(mask, rank - 1)))
    pads = b.op("Concat", b.ints(*[0] * (2 * rank - 1)), missing, axis=0)
    return b.op("Pad", value, pads, b.scalar(-INF, _FLOAT))


def _equal(b: Build, mask: ir.Value, axis: int) -> bool:
    """Whether the mask is as long as keys of symbolic length."""
    k0 = b.needed(1, "K")
    return b.input(4) is None and b.same(mask, axis, k0, -2 % b.rank(k0, "K"))


def _heads(b: Build, value: ir.Value, attribute: str, what: str) -> ir.Value:
    rank = b.rank(value, what)
    if rank == 4:
        return value
    if rank != 3:
        raise Decline(f"{what} has {rank} dims")
    return split_heads(b, value, int(b.attr(attribute, 0)), what)


def _count(b: Build, value: ir.Value, attribute: str) -> int:
    count = b.known(value, 1) if b.rank(value, attribute) == 4 else int(b.attr(attribute, 0))
    if not count:
        raise Decline(f"the number of heads ({attribute}) is unknown")
    return count


def _size(b: Build, value: ir.Value, heads: int) -> int:
    rank = b.rank(value, "an input")
    size = b.known(value, rank - 1)
    if size is None:
        raise Decline("the depth of queries and keys or the width of the values is symbolic")
    return size if rank == 4 else size // heads


def _name(dtype: ir.DataType | None) -> str:
    return "of unknown dtype" if dtype is None else dtype.name.lower()
