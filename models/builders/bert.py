"""A BERT encoder: post-norm layers with erf-GELU, an additive padding mask, optional embeddings."""

from __future__ import annotations

import math

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph, Size


def bert(*, batch: DimSize = 1, seq: DimSize = 128, hidden: int = 768, heads: int = 12, ffn: int = 3072,
         layers: int = 1, embeddings: bool = False, vocab: int = 30522, fused: bool = False,
         seed: int = 0) -> onnx.ModelProto:
    """Inputs: hidden_states float [batch, seq, hidden] (or input_ids, token_type_ids int64 [batch, seq]) and
    attention_mask int64 [batch, seq]. Output: last_hidden_state float [batch, seq, hidden].

    `batch` and `seq` given as names make a dynamic export. `fused` writes LayerNormalization and Gelu (opset 20).
    """
    g = Graph("bert", opset=20 if fused else 17, seed=seed)
    if embeddings:
        ids = g.input("input_ids", [batch, seq], np.int64)
    else:
        x = g.input("hidden_states", [batch, seq, hidden])
    mask_in = g.input("attention_mask", [batch, seq], np.int64)
    if embeddings:
        types = g.input("token_type_ids", [batch, seq], np.int64)
        g.metadata["vocab_size"] = str(vocab)
        with g.scope("embeddings"):
            x = _embed(g, ids, types, seq, hidden, vocab, fused)
    mask = s.padding_mask(g, mask_in)
    for i in range(layers):
        with g.scope(f"encoder/layer.{i}"):
            x = _layer(g, x, mask, batch, seq, hidden, heads, ffn, fused)
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def _embed(g: Graph, ids: str, types: str, seq: DimSize, hidden: int, vocab: int, fused: bool) -> str:
    longest = 512 if not isinstance(seq, int) else max(512, seq)
    positions = g.const(np.arange(longest, dtype=np.int64)[None])
    positions = s.slice_(g, positions, 1, 0, s.size(g, ids, 1, seq))
    words = g.op("Gather", g.weight("word_embeddings.weight", g.normal(vocab, hidden, std=0.5)), ids)
    kinds = g.op("Gather", g.weight("token_type_embeddings.weight", g.normal(2, hidden, std=0.2)), types)
    places = g.op("Gather", g.weight("position_embeddings.weight", g.normal(longest, hidden, std=0.2)), positions)
    with g.scope("LayerNorm"):
        return s.layer_norm(g, g.op("Add", g.op("Add", words, kinds), places), hidden, eps=1e-12, fused=fused)


def _layer(g: Graph, x: str, mask: str, batch: DimSize, seq: DimSize, hidden: int, heads: int, ffn: int,
           fused: bool) -> str:
    head = hidden // heads

    def split_heads(value: str, perm: list[int]) -> str:
        lead: list[Size] = [s.size(g, value, 0, batch), s.size(g, value, 1, seq)]
        return g.op("Transpose", s.view(g, value, [*lead, heads, head]), perm=perm)

    with g.scope("attention"):
        with g.scope("self"):
            parts = {}
            for name, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
                with g.scope(name):
                    projected = s.linear(g, x, hidden, hidden)
                parts[name] = split_heads(projected, perm)
            scores = g.op("Div", g.op("MatMul", parts["query"], parts["key"]), g.const(math.sqrt(head)))
            weights = s.softmax(g, g.op("Add", scores, mask))
            context = g.op("Transpose", g.op("MatMul", weights, parts["value"]), perm=[0, 2, 1, 3])
            joined = s.view(g, context, [s.size(g, context, 0, batch), s.size(g, context, 1, seq), hidden])
        with g.scope("output"):
            with g.scope("dense"):
                y = s.linear(g, joined, hidden, hidden)
            with g.scope("LayerNorm"):
                x = s.layer_norm(g, g.op("Add", y, x), hidden, eps=1e-12, fused=fused)
    with g.scope("intermediate"):
        with g.scope("dense"):
            y = s.linear(g, x, hidden, ffn)
        y = s.gelu_erf(g, y, fused=fused)
    with g.scope("output"):
        with g.scope("dense"):
            y = s.linear(g, y, ffn, hidden)
        with g.scope("LayerNorm"):
            return s.layer_norm(g, g.op("Add", y, x), hidden, eps=1e-12, fused=fused)
