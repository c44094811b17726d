"""A GPT-2-like decoder: pre-norm LayerNorm, Conv1D projections, tanh-GELU; prefill, or decode with a KV cache."""

from __future__ import annotations

import math

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph, Size


def gpt2(*, batch: DimSize = 1, seq: DimSize = 512, past: DimSize | None = None, hidden: int = 768, heads: int = 12,
         layers: int = 1, embeddings: bool = False, vocab: int = 50257, context: int = 1024, cache: bool = True,
         fused: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden] (or input_ids int64 [batch, seq]), attention_mask int64 [batch,
    past + seq], and, when `past` is given, past_key_values.{i}.key and .value float [batch, heads, past, head].
    Outputs: last_hidden_state (or logits) and, with `cache`, present.{i}.key and .value [batch, heads, past + seq,
    head].

    Prefill is `past=None`; decode is `past=N` with `seq=1`. `context` is the longest past + seq.
    """
    g = Graph("gpt2", opset=20 if fused else 17, seed=seed)
    total = seq if past is None else _sum(past, seq)
    if isinstance(total, int) and total > context:
        raise ValueError(f"past + seq is {total}, more than the context of {context}")
    head = hidden // heads
    if embeddings:
        ids = g.input("input_ids", [batch, seq], np.int64)
        g.metadata["vocab_size"] = str(vocab)
    else:
        x = g.input("hidden_states", [batch, seq, hidden])
    pad = g.input("attention_mask", [batch, total], np.int64)
    pasts: list[tuple[str, str] | None] = [None] * layers
    if past is not None:
        shape = [batch, heads, past, head]
        pasts = [(g.input(f"past_key_values.{i}.key", shape), g.input(f"past_key_values.{i}.value", shape))
                 for i in range(layers)]
    with g.scope("transformer"):
        if embeddings:
            x = _embed(g, ids, pasts[0], batch, seq, past, hidden, vocab, context)
        mask = s.padding_mask(g, pad)
        presents = []
        for i in range(layers):
            with g.scope(f"h.{i}"):
                x, present = _layer(g, x, mask, pasts[i], (batch, seq, total), hidden, heads, context, fused)
                presents.append(present)
        with g.scope("ln_f"):
            x = s.layer_norm(g, x, hidden, fused=fused)
    if embeddings:
        with g.scope("lm_head"):
            x = s.linear(g, x, hidden, vocab, bias=False)
        g.output(x, "logits", [batch, seq, vocab])
    else:
        g.output(x, "last_hidden_state", [batch, seq, hidden])
    if cache:
        for i, (key, value) in enumerate(presents):
            g.output(key, f"present.{i}.key", [batch, heads, total, head])
            g.output(value, f"present.{i}.value", [batch, heads, total, head])
    return g.finish()


def _sum(a: DimSize, b: DimSize) -> DimSize:
    return a + b if isinstance(a, int) and isinstance(b, int) else f"{a} + {b}"


def _embed(g: Graph, ids: str, first_past: tuple[str, str] | None, batch: DimSize, seq: DimSize, past: DimSize | None,
           hidden: int, vocab: int, context: int) -> str:
    length = s.size(g, ids, 1, seq)
    begin: Size = 0
    if first_past is not None and past is not None:
        begin = s.size(g, first_past[0], 2, past)
    if isinstance(begin, int) and isinstance(length, int):
        positions = s.arange(g, begin, begin + length)
    else:
        ends = [g.const(v) if isinstance(v, int) else v for v in (begin, length)]
        positions = s.arange(g, begin, g.op("Add", ends[1], ends[0]))
    positions = s.unsqueeze(g, positions, 0)
    with g.scope("wte"):
        words = g.op("Gather", g.weight("weight", g.normal(vocab, hidden, std=0.5)), ids)
    with g.scope("wpe"):
        places = g.op("Gather", g.weight("weight", g.normal(context, hidden, std=0.2)), positions)
    return g.op("Add", words, places)


def _layer(g: Graph, x: str, mask: str, past: tuple[str, str] | None, sizes: tuple[DimSize, DimSize, DimSize],
           hidden: int, heads: int, context: int, fused: bool) -> tuple[str, tuple[str, str]]:
    batch, seq, _ = sizes
    with g.scope("ln_1"):
        y = s.layer_norm(g, x, hidden, fused=fused)
    with g.scope("attn"):
        lead: list[Size] = [s.size(g, y, 0, batch), s.size(g, y, 1, seq)]
        with g.scope("c_attn"):
            packed = s.conv1d_gemm(g, y, lead, hidden, 3 * hidden)
        y, present = _attention(g, packed, mask, past, sizes, hidden, heads, context)
        with g.scope("c_proj"):
            y = s.conv1d_gemm(g, y, lead, hidden, hidden)
    x = g.op("Add", y, x)
    with g.scope("ln_2"):
        y = s.layer_norm(g, x, hidden, fused=fused)
    with g.scope("mlp"):
        lead = [s.size(g, y, 0, batch), s.size(g, y, 1, seq)]
        with g.scope("c_fc"):
            y = s.conv1d_gemm(g, y, lead, hidden, 4 * hidden)
        with g.scope("act"):
            y = s.gelu_tanh(g, y, fused=fused)
        with g.scope("c_proj"):
            y = s.conv1d_gemm(g, y, lead, 4 * hidden, hidden)
    return g.op("Add", x, y), present


def _attention(g: Graph, packed: str, mask: str, past: tuple[str, str] | None,
               sizes: tuple[DimSize, DimSize, DimSize], hidden: int, heads: int,
               context: int) -> tuple[str, tuple[str, str]]:
    batch, seq, total = sizes
    head = hidden // heads
    parts = g.ops("Split", 3, packed, g.const([hidden] * 3), axis=2)
    q, k, v = (g.op("Transpose", s.view(g, p, [s.size(g, p, 0, batch), s.size(g, p, 1, seq), heads, head]),
                    perm=[0, 2, 1, 3]) for p in parts)
    if past is not None:
        k = g.op("Concat", past[0], k, axis=-2)
        v = g.op("Concat", past[1], v, axis=-2)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.op("Div", scores, g.const(math.sqrt(head)))
    causal = _causal_rows(g, q, k, seq, total, context)
    scores = g.op("Add", g.op("Where", causal, scores, g.const(s.FLOAT_MIN)), mask)
    y = g.op("Transpose", g.op("MatMul", s.softmax(g, scores), v), perm=[0, 2, 1, 3])
    return s.view(g, y, [s.size(g, y, 0, batch), s.size(g, y, 1, seq), hidden]), (k, v)


def _causal_rows(g: Graph, q: str, k: str, seq: DimSize, total: DimSize, context: int) -> str:
    """bool [1, 1, seq, total]: rows total-seq … total of GPT-2's triangular buffer [1, 1, context, context]."""
    if isinstance(seq, int) and isinstance(total, int):
        triangle = np.tril(np.ones((total, total), np.bool_))[None, None]
        return g.const(np.ascontiguousarray(triangle[:, :, total - seq:]))
    buffer = g.const(np.tril(np.ones((context, context), np.bool_))[None, None])
    keys = s.size(g, k, 2, total)
    queries = s.size(g, q, 2, seq)
    ends = [g.const(v) if isinstance(v, int) else v for v in (keys, queries)]
    rows = s.slice_(g, buffer, 2, g.op("Sub", ends[0], ends[1]), keys)
    return s.slice_(g, rows, 3, 0, keys)
