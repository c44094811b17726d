"""ResNet-50 (bottleneck blocks, stride on the 3x3, as torchvision has it)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from models.builders.graph import DimSize, Graph
from models.builders.vision import classifier, conv


def resnet(*, batch: DimSize = 1, image: DimSize = 224, width: int = 64, blocks: Sequence[int] = (3, 4, 6, 3),
           classes: int = 1000, batch_norm: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input: image float [batch, 3, image, image], normalised to mean 0 and deviation 1. Output: logits float
    [batch, classes]. `batch_norm` keeps BatchNormalization nodes."""
    g = Graph("resnet", seed=seed)
    height, side = (image, image) if isinstance(image, int) else ("height", "width")
    x = g.input("image", [batch, 3, height, side])
    with g.scope("conv1"):
        x = g.op("Relu", conv(g, x, 3, width, 7, stride=2, batch_norm=batch_norm))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=0)
    channels = width
    for stage, count in enumerate(blocks):
        for i in range(count):
            with g.scope(f"layer{stage + 1}.{i}"):
                stride = 2 if i == 0 and stage else 1
                x = _bottleneck(g, x, channels, width << stage, stride, first=i == 0, batch_norm=batch_norm)
                channels = 4 * (width << stage)
    g.output(classifier(g, x, channels, classes), "logits", [batch, classes])
    return g.finish()


def _bottleneck(g: Graph, x: str, channels: int, middle: int, stride: int, *, first: bool, batch_norm: bool) -> str:
    with g.scope("conv1"):
        y = g.op("Relu", conv(g, x, channels, middle, 1, batch_norm=batch_norm))
    with g.scope("conv2"):
        y = g.op("Relu", conv(g, y, middle, middle, 3, stride=stride, batch_norm=batch_norm))
    with g.scope("conv3"):
        # A small gain keeps the sum over many blocks near unit size, as trained batch norms do.
        y = conv(g, y, middle, 4 * middle, 1, batch_norm=batch_norm, gain=0.3)
    if first:
        with g.scope("downsample.0"):
            x = conv(g, x, channels, 4 * middle, 1, stride=stride, batch_norm=batch_norm, gain=0.7)
    return g.op("Relu", g.op("Add", y, x))
