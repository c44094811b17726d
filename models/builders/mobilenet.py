"""MobileNetV2: inverted residuals with depthwise convolutions and ReLU6."""

from __future__ import annotations

import onnx

from models.builders.graph import DimSize, Graph
from models.builders.vision import classifier, conv

# Expansion, channels, repeats, stride: table 2 of Sandler et al. 2018.
_SETTING = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet(*, batch: DimSize = 1, image: DimSize = 224, width: float = 1.0, stages: int = 7, classes: int = 1000,
              batch_norm: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input: image float [batch, 3, image, image], normalised. Output: logits float [batch, classes].

    `width` multiplies the channels (kept multiples of 8); `stages` < 7 truncates the trunk."""
    g = Graph("mobilenet", seed=seed)
    height, side = (image, image) if isinstance(image, int) else ("height", "width")
    x = g.input("image", [batch, 3, height, side])
    channels = _channels(32 * width)
    with g.scope("features.0"):
        x = _relu6(g, conv(g, x, 3, channels, 3, stride=2, batch_norm=batch_norm))
    index = 1
    for expansion, base, repeats, stride in _SETTING[:stages]:
        for i in range(repeats):
            with g.scope(f"features.{index}"):
                out = _channels(base * width)
                x = _inverted(g, x, channels, out, expansion, stride if i == 0 else 1, batch_norm)
                channels = out
            index += 1
    last = _channels(1280 * max(1.0, width))
    with g.scope(f"features.{index}"):
        x = _relu6(g, conv(g, x, channels, last, 1, batch_norm=batch_norm))
    g.output(classifier(g, x, last, classes), "logits", [batch, classes])
    return g.finish()


def _channels(value: float) -> int:
    """The multiple of 8 nearest to `value`, never below 90% of it."""
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def _relu6(g: Graph, x: str) -> str:
    return g.op("Clip", x, g.const(0.0), g.const(6.0))


def _inverted(g: Graph, x: str, channels: int, out: int, expansion: int, stride: int, batch_norm: bool) -> str:
    middle = channels * expansion
    y = x
    if expansion != 1:
        with g.scope("expand"):
            y = _relu6(g, conv(g, y, channels, middle, 1, batch_norm=batch_norm))
    with g.scope("depthwise"):
        y = _relu6(g, conv(g, y, middle, middle, 3, stride=stride, groups=middle, batch_norm=batch_norm))
    with g.scope("project"):
        y = conv(g, y, middle, out, 1, batch_norm=batch_norm, gain=0.7)
    return g.op("Add", x, y) if stride == 1 and channels == out else y
