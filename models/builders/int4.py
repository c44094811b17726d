"""Feed-forward layers of a decoder with weights in blocks of 4 or 8 bits (com.microsoft MatMulNBits)."""

from __future__ import annotations

import numpy as np
import onnx

from models.builders import spelling as s
from models.builders.graph import DimSize, Graph


def blocks(*, batch: DimSize = 1, seq: DimSize = 1, hidden: int = 2048, ffn: int = 5632, layers: int = 3, bits: int = 4,
           block: int = 32, zeros: bool = False, level: int = 4, seed: int = 0) -> onnx.ModelProto:
    """Input: hidden_states float [batch, seq, hidden]. Output: the same after `layers` of RMSNorm, gated SiLU and a
    residual sum (Llama's feed-forward part). `level`: MatMulNBits' accuracy level."""
    g = Graph("blocks", seed=seed)
    x = g.input("hidden_states", [batch, seq, hidden])
    for i in range(layers):
        with g.scope(f"layers.{i}"):
            with g.scope("norm"):
                y = s.rms_norm(g, x, hidden)
            gate = _linear(g, "gate", y, hidden, ffn, bits, block, zeros, level)
            up = _linear(g, "up", y, hidden, ffn, bits, block, zeros, level)
            y = g.op("Mul", s.silu(g, gate), up)
            x = g.op("Add", x, _linear(g, "down", y, ffn, hidden, bits, block, zeros, level))
    g.output(x, "last_hidden_state", [batch, seq, hidden])
    return g.finish()


def _linear(g: Graph, name: str, x: str, depth: int, width: int, bits: int, block: int, zeros: bool, level: int) -> str:
    count = -(-depth // block)
    with g.scope(name):
        packed = g.rng.integers(0, 256, (width, count, block * bits // 8)).astype(np.uint8)
        scales = (g.rng.uniform(0.5, 1.5, (width, count)) / (2 ** (bits - 1) * depth**0.5)).astype(np.float32)
        inputs = [x, g.weight("packed", packed), g.weight("scales", scales)]
        if zeros:
            points = g.rng.integers(0, 256, (width, -(-count * bits // 8))).astype(np.uint8)
            inputs.append(g.weight("zero_points", points))
        return g.op("MatMulNBits", *inputs, domain="com.microsoft", K=depth, N=width, bits=bits, block_size=block,
                    accuracy_level=level)
