"""VGG-19: stacks of 3x3 convolutions with ReLU, max pools between them, three linear layers at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from models.builders.graph import DimSize, Graph
from models.builders.vision import conv

# Configuration E of Simonyan and Zisserman 2014: convolutions of each stage, and its channels at width 64.
_STAGES = ((2, 1), (2, 2), (4, 4), (4, 8), (4, 8))


def vgg(*, batch: DimSize = 1, image: int = 224, width: int = 64, hidden: int = 1024,
        stages: Sequence[tuple[int, int]] = _STAGES, classes: int = 1000, batch_norm: bool = False,
        seed: int = 0) -> onnx.ModelProto:
    """Input: image float [batch, 3, image, image], normalised. Output: logits float [batch, classes].

    `hidden` is the width of the two hidden linear layers: 4096 in the paper, where they hold 123 of 144 million
    weights and none of the convolutions; 1024 keeps the file small. `image` is fixed, because Flatten's width is.
    """
    shrink = 1 << len(stages)
    if image % shrink:
        raise ValueError(f"image is a multiple of {shrink}, not {image}")
    g = Graph("vgg", seed=seed)
    x = g.input("image", [batch, 3, image, image])
    channels, index = 3, 0
    for count, factor in stages:
        for _ in range(count):
            with g.scope(f"features.{index}"):
                x = g.op("Relu", conv(g, x, channels, width * factor, 3, batch_norm=batch_norm))
            channels, index = width * factor, index + 1
        x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, ceil_mode=0)
    x = g.op("Flatten", x, axis=1)
    features = channels * (image // shrink) ** 2
    for i, out in enumerate((hidden, hidden, classes)):
        with g.scope(f"classifier.{i}"):
            weight = g.weight("weight", g.normal(out, features, std=math.sqrt(2.0 / features)))
            x = g.op("Gemm", x, weight, g.weight("bias", g.normal(out, std=0.05)), transB=1)
            x = x if out == classes and i == 2 else g.op("Relu", x)
        features = out
    g.output(x, "logits", [batch, classes])
    return g.finish()
