"""What the operators have in common: heads, repeated heads, masks of positions, and the attention itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.operators.build import Build, Part

INF = float("inf")


def split_heads(b: Build, value: ir.Value, heads: int, what: str, like: ir.Value | None = None) -> ir.Value:
    """[B, S, heads * D] as [B, heads, S, D]; `like`: a value of the same extents whose shape is known."""
    like = value if like is None else like
    width = b.known(like, 2)
    if width is None:
        raise Decline(f"the width of {what} is symbolic")
    if heads <= 0 or width % heads:
        raise Decline(f"{heads} heads do not divide the width {width} of {what}")
    apart = b.reshape(value, b.extent(like, 0), b.extent(like, 1), heads, width // heads)
    return b.op("Transpose", apart, perm=[0, 2, 1, 3])


def merge_heads(b: Build, value: ir.Value, like: ir.Value, heads: int, width: Part) -> ir.Value:
    """[B, heads, S, E] as [B, S, heads * E]; `like` has the extents B and S first."""
    rows = b.op("Transpose", value, perm=[0, 2, 1, 3])
    return b.reshape(rows, b.extent(like, 0), b.extent(like, 1), b.times(heads, width))


def repeat_heads(b: Build, value: ir.Value, parts: tuple[Part, Part, Part, Part], heads: Part) -> ir.Value:
    """[B, G, S, D] as [B, heads, S, D]: each head serves a contiguous group of query heads. `parts`: its extents."""
    batch, groups, keys, depth = parts
    if isinstance(groups, int) and isinstance(heads, int):
        if groups == heads:
            return value
        if groups <= 0 or heads % groups:
            raise Decline(f"{heads} query heads are no multiple of {groups} key heads")
        group: Part = heads // groups
    else:
        group = b.op("Div", b.vector(heads), b.vector(groups))
    apart = b.reshape(value, batch, groups, 1, keys, depth)
    return b.reshape(b.op("Expand", apart, b.vector(batch, groups, group, keys, depth)), batch, heads, keys, depth)


def to_float(b: Build, value: ir.Value, like: ir.Value) -> ir.Value:
    """`value`, of the dtype of `like`, as float32: what kernels compute in."""
    return value if like.dtype == ir.DataType.FLOAT else b.op("Cast", value, to=ir.DataType.FLOAT)


def from_float(b: Build, value: ir.Value, like: ir.Value) -> ir.Value:
    """A float32 result rounded to the dtype of `like`."""
    assert like.dtype is not None
    return value if like.dtype == ir.DataType.FLOAT else b.op("Cast", value, to=like.dtype)


@dataclass
class Bias:
    """Terms that are added to the scores, as the operator adds them to each other; each has the dtype of the scores."""

    b: Build
    dtype: ir.DataType
    terms: list[ir.Value] = field(default_factory=list)

    def hide(self, hidden: ir.Value) -> None:
        """Minus infinity where the bool is true."""
        zero, low = self.b.scalar(0.0, self.dtype), self.b.scalar(-INF, self.dtype)
        self.terms.append(self.b.op("Where", hidden, low, zero))

    def add(self, value: ir.Value) -> None:
        self.terms.append(value)

    def sum(self) -> ir.Value | None:
        total = None
        for term in self.terms:
            total = term if total is None else self.b.op("Add", total, term)
        return total


def distance_mask(b: Build, bias: Bias, queries: Part, keys: Part, offset: ir.Value | Part, *, ahead: int | None,
                  behind: int | None) -> None:
    """Hides key j from query i unless i + offset - behind <= j <= i + offset + ahead; None leaves a side open.

    `offset`: an extent, or an int64 tensor [B, 1, 1, 1] of one for each sequence.
    """
    if ahead is None and behind is None:
        return
    rows, columns = b.positions(queries, -1, 1), b.positions(keys, 1, -1)
    if not isinstance(offset, int):
        rows = b.op("Add", rows, offset)
    elif offset:
        rows = b.op("Add", rows, b.ints(offset))
    if ahead is not None:
        limit = b.op("Add", rows, b.ints(ahead)) if ahead else rows
        bias.hide(b.op("Less", limit, columns))
    if behind is not None:
        limit = b.op("Sub", rows, b.ints(behind)) if behind else rows
        bias.hide(b.op("Less", columns, limit))


def root_of_scale(b: Build, scale: float | None, depth: int, dtype: ir.DataType) -> ir.Value:
    """The square root of the scale, which queries and keys are both multiplied by; `scale` None: 1/sqrt(depth)."""
    if scale is not None and scale <= 0:
        raise Decline(f"scale {scale} is not positive")
    return b.scalar(float(np.sqrt(1 / np.sqrt(np.float32(depth)) if scale is None else np.float32(scale))), dtype)


def attend(b: Build, q: ir.Value, k: ir.Value, v: ir.Value, root: ir.Value, *, softcap: float = 0.0,
           bias: ir.Value | None = None, guarded: bool = False) -> ir.Value:
    """softmax(softcap(q k^T) + bias) v with q: [B, H, S, D], k: [B, H, T, D], v: [B, H, T, E].

    `guarded`: rows whose bias is minus infinity for all keys have weights 0, as ONNX's Attention says.
    """
    scores = b.op("MatMul", b.op("Mul", q, root), b.op("Mul", b.op("Transpose", k, perm=[0, 1, 3, 2]), root))
    dtype = root.dtype
    assert dtype is not None
    if softcap:
        cap = b.scalar(softcap, dtype)
        scores = b.op("Mul", b.op("Tanh", b.op("Div", scores, cap)), cap)
    if bias is not None:
        scores = b.op("Add", scores, bias)
    weights = b.op("Softmax", scores, axis=-1)
    if guarded and bias is not None:
        hidden = b.op("Equal", b.row_max(bias), b.scalar(-INF, dtype))
        weights = b.op("Where", hidden, b.scalar(0.0, dtype), weights)
    return b.op("MatMul", weights, v)


def weighted(b: Build, q: ir.Value, k: ir.Value, v: ir.Value, scale: float, terms: Sequence[ir.Value | None],
             softcap: float = 0.0, there: ir.Value | None = None, sink: ir.Value | None = None) -> ir.Value:
    """softmax(softcap(scale * q k^T) + terms) v in float32, as the kernels of com.microsoft compute it.

    `there`: a bool for each key; the scores of others are minus infinity. `sink`: a score more for each row [.., 1].
    """
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = b.op("Mul", scores, b.scalar(float(scale), ir.DataType.FLOAT))
    if softcap:
        cap = b.scalar(softcap, ir.DataType.FLOAT)
        scores = b.op("Mul", b.op("Tanh", b.op("Div", scores, cap)), cap)
    for term in terms:
        scores = scores if term is None else b.op("Add", scores, term)
    if there is not None:
        scores = b.op("Where", there, scores, b.scalar(-INF, ir.DataType.FLOAT))
    if sink is not None:
        scores = b.op("Concat", scores, sink, axis=-1)
    weights = b.op("Softmax", scores, axis=-1)
    if sink is not None:
        weights = b.slice(weights, 3, 0, -1)
    return b.op("MatMul", weights, v)
