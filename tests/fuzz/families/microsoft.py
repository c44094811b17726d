"""Operators of com.microsoft, as ONNX Runtime's tools write them into a model before we see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

DOMAIN = "com.microsoft"


def activation(g: Graph) -> None:
    x = g.pick("f", 1)
    if x is None or g.values[x].dtype != np.float32:
        return
    op = str(g.rng.choice(["Gelu", "FastGelu", "BiasGelu", "QuickGelu"]))
    bias = [g.const(g.random(g.values[x].shape[-1:], g.values[x].dtype))]
    more: dict[str, Any] = {"alpha": 1.3} if op == "QuickGelu" else {}
    g.put(op, [x, *(bias if op == "BiasGelu" or (op == "FastGelu" and g.rng.random() < 0.5) else [])], domain=DOMAIN,
          **more)


def skipped(g: Graph) -> None:
    """SkipLayerNormalization and its kin, whose sum is read as well now and then."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim != 3 or g.values[x].dtype != np.float32 or not g.finite(x, 1e3):
        return
    other, last = g.put("Tanh", [x]), g.values[x].shape[-1:]
    if other is None:
        return
    simple = g.rng.random() < 0.5
    inputs = [x, other, g.const(g.random(last, g.values[x].dtype))]
    if not simple and g.rng.random() < 0.7:
        inputs.append(g.const(g.random(last, g.values[x].dtype)))
    outputs: Any = [True, False, False, True] if g.rng.random() < 0.5 else [True]
    g.add("SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization", inputs, outputs, DOMAIN,
          epsilon=1e-5)


def products(g: Graph) -> None:
    """FusedMatMul: turned operands and a factor."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype != np.float32:
        return
    depth, width = g.values[x].shape[-1], 16
    turned = int(g.rng.random() < 0.5)
    weight = g.rng.standard_normal((width, depth) if turned else (depth, width)) / np.sqrt(max(depth, 1))
    g.put("FusedMatMul", [x, g.const(weight, np.float32)], domain=DOMAIN, transB=turned,
          alpha=float(g.rng.choice([1.0, 0.5])))


def heads(g: Graph) -> None:
    """MultiHeadAttention and GroupQueryAttention without a past."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim != 3 or g.values[x].dtype != np.float32 or 0 in g.values[x].shape:
        return
    if g.values[x].shape[-1] % 16 or not g.finite(x, 100):
        return
    batch, length, _ = g.values[x].shape
    if g.rng.random() < 0.6:
        inputs = [x, x, x]
        if g.rng.random() < 0.3:
            inputs += ["", "", g.const(g.rng.standard_normal((1, 1, length, length)), np.float32)]
        g.put("MultiHeadAttention", inputs, domain=DOMAIN, num_heads=2,
              **({"unidirectional": 1} if g.rng.random() < 0.3 else {}))
    else:
        ends = g.const(np.full(batch, length - 1), np.int32)
        g.add("GroupQueryAttention", [x, x, x, "", "", ends, g.const(length, np.int32)], [True, True, True], DOMAIN,
              num_heads=2, kv_num_heads=2)


STEPS = (activation, activation, skipped, products, heads)
