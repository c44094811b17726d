"""A Llama-like decoder: pre-norm RMSNorm, rotary positions, grouped heads, SwiGLU, a causal (window) mask."""

from __future__ import annotations

import math

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph, Size


def llama(*, batch: DimSize = 1, seq: DimSize = 512, hidden: int = 768, heads: int = 12, kv_heads: int | None = None,
          ffn: int = 2048, layers: int = 1, window: int | None = None, embeddings: bool = False, vocab: int = 32000,
          fused: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden] (or input_ids int64 [batch, seq]) and attention_mask int64
    [batch, seq]. Output: last_hidden_state float [batch, seq, hidden], or logits float [batch, seq, vocab].

    `kv_heads` < `heads` groups the query heads; `window` keeps the last `window` keys of each query (Mistral's
    sliding window). `fused` writes RMSNormalization (opset 23).
    """
    kv = kv_heads or heads
    if heads % kv:
        raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv})")
    g = Graph("llama", opset=23 if fused else 17, seed=seed)
    if embeddings:
        ids = g.input("input_ids", [batch, seq], np.int64)
        g.metadata["vocab_size"] = str(vocab)
    else:
        x = g.input("hidden_states", [batch, seq, hidden])
    pad = g.input("attention_mask", [batch, seq], np.int64)
    with g.scope("model"):
        if embeddings:
            with g.scope("embed_tokens"):
                x = g.op("Gather", g.weight("weight", g.normal(vocab, hidden, std=0.5)), ids)
        length = s.size(g, x, 1, seq)
        positions = s.unsqueeze(g, s.arange(g, 0, length), 0)
        mask = causal_mask(g, x, pad, batch, seq, window)
        with g.scope("rotary_emb"):
            cos, sin = s.rope_tables(g, positions, hidden // heads)
        for i in range(layers):
            with g.scope(f"layers.{i}"):
                x = _layer(g, x, mask, cos, sin, (batch, seq), hidden, heads, kv, ffn, fused)
        with g.scope("norm"):
            x = s.rms_norm(g, x, hidden, fused=fused)
    if embeddings:
        with g.scope("lm_head"):
            x = s.linear(g, x, hidden, vocab, bias=False)
        g.output(x, "logits", [batch, seq, vocab])
    else:
        g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def causal_mask(g: Graph, x: str, pad: str, batch: DimSize, seq: DimSize, window: int | None) -> str:
    """Additive mask float [batch, 1, seq, seq]: 0 where key ≤ query, in the window and not padding, else float32's
    minimum; arange, compare, And, Expand, Where as transformers builds it."""
    rows: Size = s.size(g, x, 0, batch)
    length: Size = s.size(g, x, 1, seq)
    query = s.unsqueeze(g, s.arange(g, 0, length), 0, 1, 3)  # [1, 1, S, 1]
    key = s.unsqueeze(g, s.arange(g, 0, length), 0, 1, 2)  # [1, 1, 1, S]
    keep = g.op("LessOrEqual", key, query)
    if window is not None:
        keep = g.op("And", keep, g.op("Greater", key, g.op("Sub", query, g.const(window))))
    real = s.unsqueeze(g, g.op("Cast", pad, to=9), 1, 2)  # [B, 1, 1, S]
    keep = s.expand(g, g.op("And", keep, real), [rows, 1, length, length])
    return g.op("Where", keep, g.const(0.0), g.const(s.FLOAT_MIN))


def _layer(g: Graph, x: str, mask: str, cos: str, sin: str, sizes: tuple[DimSize, DimSize], hidden: int, heads: int,
           kv: int, ffn: int, fused: bool) -> str:
    with g.scope("input_layernorm"):
        y = s.rms_norm(g, x, hidden, fused=fused)
    with g.scope("self_attn"):
        y = _attention(g, y, mask, cos, sin, sizes, hidden, heads, kv)
    x = g.op("Add", x, y)
    with g.scope("post_attention_layernorm"):
        y = s.rms_norm(g, x, hidden, fused=fused)
    with g.scope("mlp"):
        with g.scope("gate_proj"):
            gate = s.linear(g, y, hidden, ffn, bias=False)
        with g.scope("act_fn"):
            gate = s.silu(g, gate)
        with g.scope("up_proj"):
            up = s.linear(g, y, hidden, ffn, bias=False)
        gated = g.op("Mul", gate, up)
        with g.scope("down_proj"):
            y = s.linear(g, gated, ffn, hidden, bias=False)
    return g.op("Add", x, y)


def _attention(g: Graph, x: str, mask: str, cos: str, sin: str, sizes: tuple[DimSize, DimSize], hidden: int,
               heads: int, kv: int) -> str:
    head = hidden // heads
    dynamic = not all(isinstance(d, int) for d in sizes)
    rows, length = s.size(g, x, 0, sizes[0]), s.size(g, x, 1, sizes[1])
    parts = {}
    for name, count in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
        with g.scope(name):
            projected = s.linear(g, x, hidden, count * head, bias=False)
        parts[name] = g.op("Transpose", s.view(g, projected, [rows, length, -1, head]), perm=[0, 2, 1, 3])
    wide_cos, wide_sin = s.unsqueeze(g, cos, 1), s.unsqueeze(g, sin, 1)
    q = s.rope(g, parts["q_proj"], wide_cos, wide_sin, head, dynamic=dynamic)
    k = s.rope(g, parts["k_proj"], wide_cos, wide_sin, head, dynamic=dynamic)
    v = parts["v_proj"]
    if kv != heads:
        k, v = (_repeat(g, t, (rows, length), heads, kv, head) for t in (k, v))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Add", g.op("Mul", scores, g.const(1.0 / math.sqrt(head))), mask)
    context = g.op("Transpose", g.op("MatMul", s.softmax(g, scores), v), perm=[0, 2, 1, 3])
    joined = s.view(g, context, [rows, length, hidden])
    with g.scope("o_proj"):
        return s.linear(g, joined, hidden, hidden, bias=False)


def _repeat(g: Graph, x: str, lead: tuple[Size, Size], heads: int, kv: int, head: int) -> str:
    """repeat_kv: [B, kv, S, head] -> [B, heads, S, head], each key head used by heads / kv query heads in a row."""
    rows, length = lead
    wide = s.expand(g, s.unsqueeze(g, x, 2), [rows, kv, heads // kv, length, head])
    return s.view(g, wide, [rows, heads, length, head])
