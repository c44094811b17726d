"""Convolutions, batch norms and heads shared by the CNN builders."""

from __future__ import annotations

import math
from typing import Any

from models.builders.graph import Graph


def conv(g: Graph, x: str, channels_in: int, channels_out: int, kernel: int, *, stride: int = 1, groups: int = 1,
         batch_norm: bool = False, gain: float = 1.0) -> str:
    """Conv and the batch norm after it: folded into the Conv's weights and bias, as an eval-mode export does, or with
    `batch_norm` left as its own node. x [B, channels_in, H, W], "same" padding for odd kernels."""
    fan_in = channels_in // groups * kernel * kernel
    weight = g.weight("weight", g.normal(channels_out, channels_in // groups, kernel, kernel,
                                         std=gain * math.sqrt(2.0 / fan_in)))
    pads = [kernel // 2] * 4
    attributes: dict[str, Any] = {"dilations": [1, 1], "group": groups, "kernel_shape": [kernel] * 2, "pads": pads,
                  "strides": [stride] * 2}
    if not batch_norm:
        return g.op("Conv", x, weight, g.weight("bias", g.normal(channels_out, std=0.05)), **attributes)
    y = g.op("Conv", x, weight, **attributes)
    scale = g.weight("bn.weight", g.normal(channels_out, std=0.1, mean=1.0))
    bias = g.weight("bn.bias", g.normal(channels_out, std=0.05))
    mean = g.weight("bn.running_mean", g.normal(channels_out, std=0.05))
    variance = g.weight("bn.running_var", abs(g.normal(channels_out, std=0.1, mean=1.0)) + 0.1)
    return g.op("BatchNormalization", y, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9)


def classifier(g: Graph, x: str, features: int, classes: int) -> str:
    """Global average pool, flatten, nn.Linear as Gemm: [B, features, H, W] -> [B, classes]."""
    flat = g.op("Flatten", g.op("GlobalAveragePool", x), axis=1)
    weight = g.weight("fc.weight", g.normal(classes, features, std=1.0 / math.sqrt(features)))
    return g.op("Gemm", flat, weight, g.weight("fc.bias", g.normal(classes, std=0.05)), transB=1)
