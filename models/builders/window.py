"""A bidirectional encoder with local attention: each token sees ±window neighbours, global tokens see all."""

from __future__ import annotations

import math

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph, Size


def window(*, batch: DimSize = 1, seq: DimSize = 2048, hidden: int = 768, heads: int = 12, ffn: int = 3072,
           layers: int = 1, reach: int = 256, global_tokens: int = 0, fused: bool = False,
           seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden], attention_mask int64 [batch, seq]. Output:
    last_hidden_state float [batch, seq, hidden].

    The mask is built in the graph from positions: |query - key| ≤ `reach`, or either position < `global_tokens`.
    Pre-norm LayerNorm, tanh-GELU (ViT and ModernBERT order), scores scaled before the product with the keys.
    """
    g = Graph("window", opset=20 if fused else 17, seed=seed)
    x = g.input("hidden_states", [batch, seq, hidden])
    pad = g.input("attention_mask", [batch, seq], np.int64)
    mask = _local_mask(g, x, pad, batch, seq, reach, global_tokens)
    for i in range(layers):
        with g.scope(f"layers.{i}"):
            with g.scope("norm1"):
                y = s.layer_norm(g, x, hidden, fused=fused)
            with g.scope("attn"):
                x = g.op("Add", x, _attention(g, y, mask, batch, seq, hidden, heads))
            with g.scope("norm2"):
                y = s.layer_norm(g, x, hidden, fused=fused)
            with g.scope("mlp"):
                with g.scope("fc1"):
                    y = s.linear(g, y, hidden, ffn)
                y = s.gelu_tanh(g, y, fused=fused)
                with g.scope("fc2"):
                    y = s.linear(g, y, ffn, hidden)
            x = g.op("Add", x, y)
    with g.scope("norm"):
        x = s.layer_norm(g, x, hidden, fused=fused)
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def _local_mask(g: Graph, x: str, pad: str, batch: DimSize, seq: DimSize, reach: int, global_tokens: int) -> str:
    rows: Size = s.size(g, x, 0, batch)
    length: Size = s.size(g, x, 1, seq)
    positions = s.arange(g, 0, length)
    query = s.unsqueeze(g, positions, 1)  # [S, 1]
    key = s.unsqueeze(g, positions, 0)  # [1, S]
    keep = g.op("LessOrEqual", g.op("Abs", g.op("Sub", query, key)), g.const(reach))
    if global_tokens:
        first = g.const(global_tokens)
        keep = g.op("Or", keep, g.op("Or", g.op("Less", query, first), g.op("Less", key, first)))
    keep = s.unsqueeze(g, keep, 0, 1)  # [1, 1, S, S]
    real = s.unsqueeze(g, g.op("Cast", pad, to=9), 1, 2)
    keep = s.expand(g, g.op("And", keep, real), [rows, 1, length, length])
    # masked_fill(zeros, not keep, min): a float tensor of zeros, then Where.
    zeros = g.op("Cast", g.op("Not", keep), to=1)
    return g.op("Where", g.op("Cast", zeros, to=9), g.const(s.FLOAT_MIN), zeros)


def _attention(g: Graph, x: str, mask: str, batch: DimSize, seq: DimSize, hidden: int, heads: int) -> str:
    head = hidden // heads
    lead: list[Size] = [s.size(g, x, 0, batch), s.size(g, x, 1, seq)]
    with g.scope("qkv"):
        packed = s.linear(g, x, hidden, 3 * hidden)
    split = g.op("Transpose", s.view(g, packed, [*lead, 3, heads, head]), perm=[2, 0, 3, 1, 4])
    q, k, v = (g.op("Gather", split, g.const(i), axis=0) for i in range(3))
    scores = g.op("MatMul", g.op("Mul", q, g.const(1.0 / math.sqrt(head))), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    weights = s.softmax(g, g.op("Add", scores, mask))
    y = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    with g.scope("proj"):
        return s.linear(g, s.view(g, y, [*lead, hidden]), hidden, hidden)
