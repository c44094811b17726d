"""com.microsoft's GroupQueryAttention: the first run over a prompt, and runs with past tokens.

Taken apart: separate or packed inputs, causal with or without a window; soft cap, sinks, rotary embedding, a bias of
the scores, present keys and values. Without past keys, `seqlens_k` says which rows are padding at the right end; the
operator leaves those rows of its results unspecified, and no other row sees such keys.

With past keys [B, G, P, D] only a run's lengths say where the new ones go, so the graph asks on every run, with Ifs:

- behind all P, if `seqlens_k` and `total_sequence_length` all say P + S: `present` is a concatenation;
- into the P rows, if `total_sequence_length` is at most P: the caller has one longer buffer for past and present, or
  sequences of several lengths. `present` has P rows, with the new ones where each sequence ends, and no key behind them
  is read. In a first run (S tokens in all) they start at 0. Rows behind are 0 as the operator has them, or in one
  buffer what they were;
- else the operator itself runs. What it refuses with an error (more tokens than rows of `cos_cache`) goes to it too.

Left whole: bidirectional (the lengths decide), quantised caches, norms of queries and keys, scores as a result and,
without past or positions, interleaved rotary embedding. With a bias of the scores there is no second way (the bias has
as many columns as there are tokens), nor where no heads share keys and no window hides any: ONNX Runtime's operator
reads them as fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build, Part
from tilegraph.rewrites.attention.operators.core import (
    Bias,
    distance_mask,
    from_float,
    merge_heads,
    repeat_heads,
    to_float,
    weighted,
)

_FLOAT = ir.DataType.FLOAT


def expand(b: Build) -> list[ir.Value | None]:
    q0 = b.needed(0, "query")
    if q0.dtype not in (_FLOAT, ir.DataType.FLOAT16):
        raise Decline("attention kernels are float32, and what they read float32 or float16")
    for index, what in ((12, "k_scale"), (13, "v_scale"), (14, "q_norm_weight"), (15, "k_norm_weight"),
                        (16, "query_seqlens")):
        if b.input(index) is not None:
            raise Decline(f"{what} is given")
    for name in ("sliding_window_cache", "qk_output"):
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
    sizes = heads, groups, depth
    if past_k is None or past_v is None:
        return _attention(b, q0, sizes, None)
    past = past_k, past_v
    one_buffer = _check_past(b, past, groups, depth)
    second = b.input(10) is None and (heads > groups or b.attr("local_window_size", -1) > 0)
    if one_buffer and not second:
        raise Decline("one buffer for past and present, and a bias of the scores or keys that no heads share")
    counts = _Counts.of(b, q0, past_k)
    begin, behind = counts.begin(b), None if one_buffer else counts.behind(b)
    ids = counts.positions(b, begin) if second or b.input(9) is not None else None
    inside = counts.inside(b, begin) if second else None
    found = b.whole()
    if behind is not None:
        first = len(b.made)
        made = _attention(b, q0, sizes, past, ids)
        found = [], b.choose(behind, (b.cut(first), made), found)
    if inside is not None:
        outer = b.cut(len(b.made) - 1) if behind is not None else found[0]
        first = len(b.made)
        made = _inside(b, q0, sizes, past, ids, begin)
        return b.choose(inside, (b.cut(first), made), (outer, found[1]))
    return found[1]


def _attention(b: Build, q0: ir.Value, sizes: tuple[int, int, int], past: tuple[ir.Value, ir.Value] | None,
               ids: ir.Value | None = None) -> list[ir.Value | None]:
    """The results; `sizes`: heads, heads of keys, depth. `past`: keys and values that the new ones are put behind.
    `ids`: positions [B, S] of the new ones."""
    heads, groups, depth = sizes
    offset: Part = 0 if past is None else b.extent(past[0], 2)
    if past is not None and ids is None:
        ids = b.vector(offset)  # behind the past, for all sequences alike
    if past is None and b.input(9) is not None and b.attr("do_rotary", 0):
        ids = _first(b, b.needed(9, "position_ids"))  # in a first run the operator counts on from there
    if past is None and ids is None and q0.dtype != _FLOAT and b.attr("do_rotary", 0):
        ids = b.ints(0)  # an operator rounds as this one does inside
    q, k, v = _heads(b, q0, heads, groups, depth, ids)
    if b.attr("do_rotary", 0) and ids is None:
        q, k = _rotate(b, q, q0, heads, depth), _rotate(b, k, q0, groups, depth)
    if past is not None:
        k, v = b.op("Concat", past[0], k, axis=2), b.op("Concat", past[1], v, axis=2)
    keys = b.plus(offset, b.extent(q0, 1))
    return _attended(b, q0, sizes, (q, k, v), keys, offset, None)


def _inside(b: Build, q0: ir.Value, sizes: tuple[int, int, int], past: tuple[ir.Value, ir.Value],
            ids: ir.Value | None, begin: ir.Value) -> list[ir.Value | None]:
    """The results of runs whose new keys go to rows from `begin` [B] on of as many as the past has."""
    heads, groups, depth = sizes
    q, *new = _heads(b, q0, heads, groups, depth, ids)
    batch, length, rows = b.extent(q0, 0), b.extent(q0, 1), b.extent(past[0], 2)
    start = b.reshape(begin, batch, 1, 1, 1)
    kept = b.op("Less", b.positions(rows, 1, 1, -1, 1), start)
    places = b.op("Add", b.positions(length, 1, 1, -1, 1), start)
    places = b.op("Expand", places, b.vector(batch, groups, length, depth))
    nothing = b.scalar(0.0, q0)
    k, v = (b.op("ScatterElements", b.op("Where", kept, one, nothing), places, more, axis=2)
            for one, more in zip(past, new, strict=True))
    there = b.op("Less", b.positions(rows, 1, 1, 1, -1), b.op("Add", start, b.reshape(b.vector(length), 1, 1, 1, 1)))
    return _attended(b, q0, sizes, (q, k, v), rows, start, there)


def _attended(b: Build, q0: ir.Value, sizes: tuple[int, int, int], what: tuple[ir.Value, ir.Value, ir.Value],
              keys: Part, offset: ir.Value | Part, there: ir.Value | None) -> list[ir.Value | None]:
    """The results of queries, keys and values [B, heads, .., D]; `keys`: how many, of which the first query sees one
    more than `offset`. `there`: which keys there are, as bool [B, 1, 1, keys]."""
    heads, groups, depth = sizes
    q, *present = what
    batch, length = b.extent(q0, 0), b.extent(q0, 1)
    k, v = (to_float(b, repeat_heads(b, one, (batch, groups, keys, depth), heads), q0) for one in present)
    if there is not None:
        v = b.op("Where", b.op("Transpose", there, perm=[0, 1, 3, 2]), v, b.scalar(0.0, _FLOAT))
    bias = Bias(b, _FLOAT)
    window = int(b.attr("local_window_size", -1))
    if b.attr("causal", 1):
        distance_mask(b, bias, length, keys, offset, ahead=0, behind=window - 1 if window > 0 else None)
    elif offset != 0 or b.input(5) is not None:
        raise Decline("without a causal mask the lengths in seqlens_k decide which keys count")
    given = b.input(10)
    terms = [None if given is None else to_float(b, given, given), bias.sum()]
    y = weighted(b, to_float(b, q, q0), k, v, b.attr("scale", 0.0) or 1 / np.sqrt(np.float32(depth)), terms,
                 float(b.attr("softcap", 0.0)), there, _sink(b, (batch, heads, length)))
    return [from_float(b, merge_heads(b, y, q0, heads, depth), q0), present[0] if b.wants(1) else None,
            present[1] if b.wants(2) else None]


def _sink(b: Build, rows: tuple[Part, Part, Part]) -> ir.Value | None:
    """A score more for each row [B, heads, S, 1]: learned ones of the heads, or 0."""
    given = b.input(11)
    if given is None and not b.attr("smooth_softmax", 0):
        return None
    one = b.const(np.zeros((1, 1, 1, 1), np.float32)) if given is None else \
        b.reshape(to_float(b, given, given), 1, rows[1], 1, 1)
    return b.op("Expand", one, b.vector(*rows, 1))


def _check_past(b: Build, past: tuple[ir.Value, ir.Value], groups: int, depth: int) -> bool:
    """Whether the present is declared to be as long as the past: one buffer for both, and nothing else."""
    whole = False
    for value, output, what in zip(past, (1, 2), ("key", "value"), strict=True):
        if value.dtype != b.needed(0, "query").dtype:
            raise Decline(f"past_{what} is of another type than the queries")
        if b.rank(value, f"past_{what}") != 4 or b.known(value, 1) != groups or b.known(value, 3) != depth:
            raise Decline(f"past_{what} is no [batch, kv_num_heads, past, depth]")
        present = b.node.outputs[output] if output < len(b.node.outputs) else None
        whole |= present is not None and present.shape is not None and len(present.shape) == 4 \
            and b.same(value, 2, present, 2)
    if not b.same(past[0], 2, past[1], 2):
        raise Decline("past_key and past_value may be of different lengths")
    if b.input(5) is None or b.input(6) is None:
        raise Decline("seqlens_k and total_sequence_length are not given")
    return whole


def _first(b: Build, positions: ir.Value) -> ir.Value:
    """The first of the positions [B, S], as [1]."""
    return b.op("Slice", b.op("Reshape", positions, b.ints(-1)), b.ints(0), b.ints(1))


@dataclass(frozen=True)
class _Counts:
    """int64: how many tokens each sequence [B] and the longest [1] have, how many of them are new, and rows of the
    past [1]."""

    lengths: ir.Value
    total: ir.Value
    new: ir.Value
    rows: ir.Value
    batch: Part

    @staticmethod
    def of(b: Build, q0: ir.Value, past_k: ir.Value) -> _Counts:
        lengths, total = b.needed(5, "seqlens_k"), b.needed(6, "total_sequence_length")
        one, batch = b.ints(1), b.extent(q0, 0)  # seqlens_k counts without the last token
        counted = b.op("Add", b.op("Cast", b.reshape(lengths, batch), to=ir.DataType.INT64), one)
        return _Counts(counted, b.op("Cast", b.op("Reshape", total, one), to=ir.DataType.INT64),
                       b.vector(b.extent(q0, 1)), b.vector(b.extent(past_k, 2)), batch)

    def begin(self, b: Build) -> ir.Value:
        """The row of the first new token of each sequence [B]."""
        return b.op("Where", self.first_run(b), b.ints(0), b.op("Sub", self.lengths, self.new))

    def first_run(self, b: Build) -> ir.Value:
        """Whether all tokens are new [1]."""
        return b.op("Equal", self.total, self.new)

    def behind(self, b: Build) -> ir.Value:
        """Whether the new keys of every sequence come behind all of the past, and the tables of angles reach so far."""
        said = b.op("Concat", self.lengths, self.total, axis=0)
        same = b.op("Equal", said, b.op("Add", self.rows, self.new))
        return self._all(b, [same, *self._in_tables(b)])

    def inside(self, b: Build, begin: ir.Value) -> ir.Value:
        """Whether the new keys of every sequence have their place in the past's rows."""
        least = b.op("Less", b.ints(-1), begin)
        most = b.op("Not", b.op("Less", b.op("Sub", self.total, self.new), begin))
        fits = b.op("Not", b.op("Less", self.rows, self.total))
        return self._all(b, [least, most, fits, *self._in_tables(b)])

    def positions(self, b: Build, begin: ir.Value) -> ir.Value | None:
        """Where the new tokens stand [B, S]: behind the others, or as the caller says, in a first run its first."""
        if not b.attr("do_rotary", 0):
            return None
        steps = b.positions(b.extent(b.needed(0, "query"), 1), 1, -1)
        given = b.input(9)
        if given is None:
            return b.op("Add", b.reshape(begin, self.batch, 1), steps)
        counted = b.op("Add", b.op("Reshape", _first(b, given), b.ints(1, 1)), steps)
        return b.op("Where", b.op("Reshape", self.first_run(b), b.ints(1, 1)), counted, given)

    def _in_tables(self, b: Build) -> list[ir.Value]:
        if not b.attr("do_rotary", 0):
            return []
        return [b.op("Not", b.op("Less", b.vector(b.extent(b.needed(index, what), 0)), self.total))
                for index, what in ((7, "cos_cache"), (8, "sin_cache"))]

    @staticmethod
    def _all(b: Build, flags: list[ir.Value]) -> ir.Value:
        flag = b.op("Cast", b.op("Concat", *flags, axis=0), to=ir.DataType.INT32)
        least = b.op("ReduceMin", flag, b.ints(0), keepdims=0) if b.opset >= 18 else \
            b.op("ReduceMin", flag, axes=[0], keepdims=0)
        return b.op("Cast", least, to=ir.DataType.BOOL)


def _heads(b: Build, q0: ir.Value, heads: int, groups: int, depth: int,
           ids: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value]:
    """[B, heads, S, D] and twice [B, groups, S, D]; queries and keys turned by positions `ids` if these are given."""
    batch, length = b.extent(q0, 0), b.extent(q0, 1)

    def laid(value: ir.Value, count: int) -> ir.Value:
        return b.op("Transpose", b.reshape(value, batch, length, count, depth), perm=[0, 2, 1, 3])

    def turned(value: ir.Value, count: int) -> ir.Value:
        if ids is None or not b.attr("do_rotary", 0):
            return value
        return _turned(b, value, count, depth, ids)

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
    half = b.known(cos, 1)
    if half is None or 2 * half > depth:
        raise Decline("the width of cos_cache is symbolic or too large")
    return cos, sin, half


def _turned(b: Build, value: ir.Value, heads: int, depth: int, ids: ir.Value) -> ir.Value:
    """Rotary embedding of [B, S, heads * D] at positions `ids` [B, S], by an operator of its own, which computes as
    this one does inside: present keys are then the same bits."""
    cos, sin, half = _tables(b, depth)
    part = {} if 2 * half == depth else {"rotary_embedding_dim": 2 * half}
    return b.op("RotaryEmbedding", value, ids, cos, sin, domain="com.microsoft", num_heads=heads,
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
