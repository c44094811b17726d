"""Longformer as transformers writes it and PyTorch exports it: sliding chunks whose scores are skewed into a band."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from models.builders import spelling as s
from models.builders.graph import Array, DimSize, Graph, Size
from models.builders.local import Sizes, layer


def longformer_chunks(*, batch: DimSize = 1, seq: int = 4096, hidden: int = 768, heads: int = 12, ffn: int = 3072,
                      layers: int = 1, reach: int = 256, seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden], attention_mask int64 [batch, seq] (1 for tokens). Output:
    last_hidden_state float [batch, seq, hidden], where rows of padding have no attention.

    |query - key| ≤ `reach`; no global tokens. `seq` is a multiple of 2 `reach`.
    """
    if seq % (2 * reach):
        raise ValueError(f"seq ({seq}) must be a multiple of 2 reach ({2 * reach})")
    sizes = Sizes(batch, seq, hidden, heads, reach)
    g = Graph("longformer_chunks", seed=seed)
    x = g.input("hidden_states", [batch, seq, hidden])
    hidden_keys = g.op("Equal", g.input("attention_mask", [batch, seq], np.int64), g.const(0))
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            x = layer(g, x, _Attention(g, sizes, s.size(g, x, 0, batch)).attend(x, hidden_keys), sizes, ffn)
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


class _Attention:
    def __init__(self, g: Graph, sizes: Sizes, batch: Size) -> None:
        self.g, self.sizes, self.batch = g, sizes, batch
        self.lanes: Size = batch * sizes.heads if isinstance(batch, int) else g.op("Mul", batch, g.const(sizes.heads))

    def attend(self, x: str, hidden_keys: str) -> str:
        """[batch, seq, hidden] of [batch, seq, hidden]; hidden_keys: bool [batch, seq]."""
        g, z, w = self.g, self.sizes, self.sizes.block
        x = g.op("Transpose", x, perm=[1, 0, 2])
        q, k, v = (self._rows(x, name) for name in ("query", "key", "value"))
        q = g.op("Div", q, g.const(math.sqrt(z.head)))
        lanes = self.lanes
        scores = self._band(self._chunks(q, lanes, z.head), self._chunks(k, lanes, z.head), lanes, z.heads)
        column = s.unsqueeze(g, hidden_keys, 2, 3)
        mask = g.op("Where", column, g.const(float(np.finfo(np.float32).min)), g.op("Cast", column, to=1))
        mask = g.op("Reshape", g.op("Transpose", mask, perm=[0, 2, 1, 3]), self._shape(self.batch, z.seq, 1))
        ones = g.op("ConstantOfShape", self._shape(self.batch, z.seq, 1), value=_one(1.0))
        scores = g.op("Add", scores, self._band(self._chunks(ones, self.batch, 1), self._chunks(mask, self.batch, 1),
                                                self.batch, 1))
        weights = g.op("Where", column, g.const(0.0), s.softmax(g, scores))
        weights = g.op("Reshape", g.op("Transpose", weights, perm=[0, 2, 1, 3]),
                       self._shape(lanes, z.blocks, w, 2 * w + 1))
        y = g.op("Einsum", self._skewed_back(weights, lanes), self._windows(v, lanes), equation="bcwd,bcdh->bcwh")
        y = g.op("Transpose", g.op("Reshape", y, self._shape(self.batch, z.heads, z.seq, z.head)), perm=[2, 0, 1, 3])
        return g.op("Transpose", g.op("Reshape", y, self._shape(z.seq, self.batch, z.hidden)), perm=[1, 0, 2])

    def _rows(self, x: str, name: str) -> str:
        """[batch * heads, seq, head]"""
        g, z = self.g, self.sizes
        with g.scope(name):
            y = s.linear(g, x, z.hidden, z.hidden)
        y = g.op("Reshape", y, self._shape(z.seq, self.batch, z.heads, z.head))
        return g.op("Reshape", g.op("Transpose", y, perm=[1, 2, 0, 3]), self._shape(self.lanes, z.seq, z.head))

    def _shape(self, *dims: Size) -> str:
        return s.shape_of(self.g, dims)

    def _along(self, places: Array | Size, axis: int, rank: int) -> str:
        """Places along one of `rank` axes; a size stands for all that there are, as PyTorch counts them."""
        g, shape = self.g, [-1 if m == axis else 1 for m in range(rank)]
        if not isinstance(places, str):
            return g.const((np.arange(places) if isinstance(places, int) else places).reshape(shape))
        ones = g.op("ConstantOfShape", self._shape(places), value=numpy_helper.from_array(np.ones(1, np.int64)))
        counted = g.op("Squeeze", g.op("Transpose", g.op("NonZero", ones), perm=[1, 0]), g.const([1]))
        return g.op("Reshape", counted, g.const(shape))

    def _strided(self, x: str, shape: Sequence[Size], strides: Sequence[int]) -> str:
        """Tensor.as_strided: a flat Gather."""
        g = self.g
        place = ""
        for k, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            along = g.op("Mul", self._along(extent, k, len(shape)), g.const([stride]))
            place = g.op("Add", place, along) if place else along
        return g.op("Gather", g.op("Reshape", x, g.const([-1])), place)

    def _chunks(self, x: str, lanes: Size, width: int) -> str:
        """[lanes, chunks, 2 w, width]: chunks that overlap by half."""
        seq, w = self.sizes.seq, self.sizes.block
        return self._strided(x, (lanes, seq // w - 1, 2 * w, width), (seq * width, w * width, width, 1))

    def _windows(self, x: str, lanes: Size) -> str:
        """[lanes, blocks, 3 w, head]: each block with its neighbours."""
        g, z, w = self.g, self.sizes, self.sizes.block
        x = g.op("Pad", x, g.const([0, w, 0, 0, w, 0]), g.const(-1.0))
        row = z.head * (z.seq + 2 * w)
        return self._strided(x, (lanes, z.blocks, 3 * w, z.head), (row, w * z.head, z.head, 1))

    def _assigned(self, data: str, places: Sequence[Array | Size], value: str) -> str:
        """data[places..] = value, with one list of places for each axis."""
        g, rank = self.g, len(places)
        extents = self._shape(*(p if isinstance(p, (int, str)) else len(p) for p in places))
        index = [s.unsqueeze(g, g.op("Expand", self._along(place, k, rank), extents), -1)
                 for k, place in enumerate(places)]
        return g.op("ScatterND", data, g.op("Concat", *index, axis=-1), g.op("Reshape", value, extents))

    def _band(self, q: str, k: str, lanes: Size, heads: int) -> str:
        """[batch, seq, heads, 2 w + 1]: the scores of each query with the keys around it, -inf outside."""
        g, w, seq = self.g, self.sizes.block, self.sizes.seq
        n = seq // w
        x = g.op("Pad", g.op("Einsum", q, k, equation="bcxd,bcyd->bcxy"), g.const([0, 0, 0, 0, 0, 0, 1, 0]))
        x = g.op("Reshape", x, self._shape(lanes, n - 1, 2 * w, 2 * w + 1))
        every, rows, upper, lower = lanes, np.arange(w), np.arange(w, 2 * w + 1), np.arange(w)
        y = g.op("ConstantOfShape", self._shape(lanes, n, w, 2 * w + 1), value=_one(0.0))
        y = self._assigned(y, (every, np.arange(n - 1), rows, upper), self._cut(x, (2, 0, w), (3, 0, w + 1)))
        y = self._assigned(y, (every, np.array([n - 1]), rows, upper),
                           self._cut(g.op("Gather", x, g.const(-1), axis=1), (1, w, 2 * w), (2, 0, w + 1)))
        y = self._assigned(y, (every, np.arange(1, n), rows, lower),
                           self._cut(x, (2, w - 1, 2 * w - 1), (3, w + 1, 2 * w + 1)))
        if w > 1:
            y = self._assigned(y, (every, np.array([0]), rows[1:], rows[1:]),
                               self._cut(g.op("Gather", x, g.const(0), axis=1), (1, 0, w - 1), (2, w + 2, 2 * w + 1)))
        y = g.op("Transpose", g.op("Reshape", y, self._shape(self.batch, heads, seq, 2 * w + 1)), perm=[0, 2, 1, 3])
        for start, first in ((0, 0), (seq - w, w)):  # before the first token, and behind the last
            i, c = np.arange(w)[:, None] + start, np.arange(first, first + w + 1)
            outside = ((i + c - w < 0) | (i + c - w >= seq)).astype(np.float32)
            piece = self._cut(y, (1, start, start + w), (3, first, first + w + 1))
            extents = self._shape(self.batch, w, heads, w + 1)
            which = g.op("Cast", g.op("Expand", g.const(outside[None, :, None]), extents), to=9)
            never = g.op("ConstantOfShape", extents, value=_one(-math.inf))
            y = self._assigned(y, (self.batch, i[:, 0], heads, c),
                               g.op("Where", which, never, piece))
        return y

    def _cut(self, x: str, *ranges: tuple[int, int, int]) -> str:
        for axis, start, stop in ranges:
            x = s.slice_(self.g, x, axis, start, stop)
        return x

    def _skewed_back(self, x: str, lanes: Size) -> str:
        """[lanes, blocks, w, 2 w + 1] as [lanes, blocks, w, 3 w]: row r moves to the right by r."""
        g, n, w = self.g, self.sizes.blocks, self.sizes.block
        x = g.op("Pad", x, g.const([0, 0, 0, 0, 0, 0, 0, w + 1]))
        x = self._cut(g.op("Reshape", x, self._shape(lanes, n, w * (3 * w + 2))), (2, 0, w * (3 * w + 1)))
        return self._cut(g.op("Reshape", x, self._shape(lanes, n, w, 3 * w + 1)), (3, 0, 3 * w))


def _one(number: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([number], np.float32))
