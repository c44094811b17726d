"""A detector in the manner of YOLOv8-n: C2f blocks with SiLU, spatial pyramid pooling, a two-way feature pyramid, and
a decoupled head whose boxes are distributions over distances.

Written from the published description of the architecture (backbone, neck, head, widths of the "n" size): every
convolution is Conv + SiLU as exporters leave it (Sigmoid, Mul), channels are split and concatenated, features are
upsampled by nearest Resize.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from models.builders.graph import DimSize, Graph
from models.builders.vision import conv

_STRIDES = (8, 16, 32)


def yolo(*, batch: DimSize = 1, image: int = 320, width: int = 16, depth: Sequence[int] = (1, 2, 2, 1),
         classes: int = 80, bins: int = 16, batch_norm: bool = False, seed: int = 0) -> onnx.ModelProto:
    """Input: image float [batch, 3, image, image], normalised. Output: float [batch, 4 + classes, anchors]: boxes
    (centre and size in pixels) and class scores; anchors = (image/8)² + (image/16)² + (image/32)².

    `width`: channels of the first convolution (16 for "n"). `depth`: blocks of the four stages. `bins`: distances that
    a side can have.
    """
    if image % 32:
        raise ValueError(f"image is a multiple of 32, not {image}")
    n = _Net(Graph("yolo", seed=seed), batch_norm)
    g, w = n.g, width
    x = g.input("image", [batch, 3, image, image])
    x = n.conv("model.0", x, 3, w, 3, 2)
    x = n.conv("model.1", x, w, 2 * w, 3, 2)
    x = n.c2f("model.2", x, 2 * w, 2 * w, depth[0], True)
    x = n.conv("model.3", x, 2 * w, 4 * w, 3, 2)
    p3 = n.c2f("model.4", x, 4 * w, 4 * w, depth[1], True)
    x = n.conv("model.5", p3, 4 * w, 8 * w, 3, 2)
    p4 = n.c2f("model.6", x, 8 * w, 8 * w, depth[2], True)
    x = n.conv("model.7", p4, 8 * w, 16 * w, 3, 2)
    x = n.c2f("model.8", x, 16 * w, 16 * w, depth[3], True)
    p5 = n.pyramid_pool("model.9", x, 16 * w)
    up4 = n.c2f("model.12", n.join("model.11", n.double("model.10", p5), p4), 24 * w, 8 * w, 1, False)
    out3 = n.c2f("model.15", n.join("model.14", n.double("model.13", up4), p3), 12 * w, 4 * w, 1, False)
    down = n.conv("model.16", out3, 4 * w, 4 * w, 3, 2)
    out4 = n.c2f("model.18", n.join("model.17", down, up4), 12 * w, 8 * w, 1, False)
    down = n.conv("model.19", out4, 8 * w, 8 * w, 3, 2)
    out5 = n.c2f("model.21", n.join("model.20", down, p5), 24 * w, 16 * w, 1, False)
    levels = [(out3, 4 * w), (out4, 8 * w), (out5, 16 * w)]
    with g.scope("model.22"):
        y = n.head(levels, batch, image, classes, bins)
    anchors = sum((image // s) ** 2 for s in _STRIDES)
    g.output(y, "output0", [batch, 4 + classes, anchors])
    return g.finish()


class _Net:
    """The blocks; `batch_norm` leaves batch norms as nodes."""

    def __init__(self, g: Graph, batch_norm: bool) -> None:
        self.g = g
        self.batch_norm = batch_norm

    def conv(self, name: str, x: str, channels: int, out: int, kernel: int, stride: int = 1) -> str:
        """Conv and SiLU."""
        with self.g.scope(name):
            y = conv(self.g, x, channels, out, kernel, stride=stride, batch_norm=self.batch_norm)
            return self.g.op("Mul", y, self.g.op("Sigmoid", y))

    def c2f(self, name: str, x: str, channels: int, out: int, count: int, residual: bool) -> str:
        """A 1x1, half of it through `count` bottlenecks whose results are all kept, a 1x1 over everything."""
        half = out // 2
        with self.g.scope(name):
            y = self.conv("cv1", x, channels, out, 1)
            parts = self.g.ops("Split", 2, y, self.g.const([half, half]), axis=1)
            for i in range(count):
                z = self.conv(f"m.{i}.cv2", self.conv(f"m.{i}.cv1", parts[-1], half, half, 3), half, half, 3)
                parts.append(self.g.op("Add", parts[-1], z) if residual else z)
            return self.conv("cv2", self.g.op("Concat", *parts, axis=1), (2 + count) * half, out, 1)

    def pyramid_pool(self, name: str, x: str, channels: int) -> str:
        """Three 5x5 max pools one after another, all of them kept."""
        half = channels // 2
        with self.g.scope(name):
            parts = [self.conv("cv1", x, channels, half, 1)]
            for _ in range(3):
                parts.append(self.g.op("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4,
                                       ceil_mode=0))
            return self.conv("cv2", self.g.op("Concat", *parts, axis=1), 4 * half, channels, 1)

    def double(self, name: str, x: str) -> str:
        """Nearest upsampling by two."""
        with self.g.scope(name):
            return self.g.op("Resize", x, "", self.g.const([1.0, 1.0, 2.0, 2.0]), mode="nearest", nearest_mode="floor",
                             coordinate_transformation_mode="asymmetric")

    def join(self, name: str, a: str, b: str) -> str:
        with self.g.scope(name):
            return self.g.op("Concat", a, b, axis=1)

    def head(self, levels: Sequence[tuple[str, int]], batch: DimSize, image: int, classes: int, bins: int) -> str:
        g = self.g
        box_width = max(16, levels[0][1] // 4, 4 * bins)
        class_width = max(levels[0][1], min(classes, 100))
        rows, maps = -1 if isinstance(batch, str) else batch, []
        for i, (x, channels) in enumerate(levels):
            made = []
            for branch, middle, out in ((2, box_width, 4 * bins), (3, class_width, classes)):
                y = self.conv(f"cv{branch}.{i}.0", x, channels, middle, 3)
                y = self.conv(f"cv{branch}.{i}.1", y, middle, middle, 3)
                with g.scope(f"cv{branch}.{i}.2"):
                    # Trained distributions have a peak, which scores near zero would not give.
                    made.append(conv(g, y, middle, out, 1, gain=4.0 if branch == 2 else 1.0))
            flat = g.const([rows, 4 * bins + classes, (image // _STRIDES[i]) ** 2])
            maps.append(g.op("Reshape", g.op("Concat", *made, axis=1), flat))
        boxes, scores = g.ops("Split", 2, g.op("Concat", *maps, axis=2), g.const([4 * bins, classes]), axis=1)
        return g.op("Concat", self._decode(boxes, rows, image, bins), g.op("Sigmoid", scores), axis=1)

    def _decode(self, boxes: str, rows: int, image: int, bins: int) -> str:
        """[B, 4·bins, anchors] -> centre and size in pixels: the mean of each distribution, a 1x1 Conv as exporters
        leave it, is the distance from the anchor to a side."""
        g = self.g
        sides = [image // s for s in _STRIDES]
        total = sum(s * s for s in sides)
        with g.scope("dfl"):
            y = g.op("Transpose", g.op("Reshape", boxes, g.const([rows, 4, bins, total])), perm=[0, 2, 1, 3])
            mean = g.weight("conv.weight", np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
            y = g.op("Conv", g.op("Softmax", y, axis=1), mean, dilations=[1, 1], group=1, kernel_shape=[1, 1],
                     pads=[0] * 4, strides=[1, 1])
            distances = g.op("Reshape", y, g.const([rows, 4, total]))
        near, far = g.ops("Split", 2, distances, g.const([2, 2]), axis=1)
        grids = [np.stack(np.meshgrid(np.arange(s) + 0.5, np.arange(s) + 0.5), 0).reshape(2, -1) for s in sides]
        anchors = g.const(np.concatenate(grids, 1)[None].astype(np.float32))
        first, last = g.op("Sub", anchors, near), g.op("Add", anchors, far)
        centre = g.op("Div", g.op("Add", first, last), g.const(2.0))
        box = g.op("Concat", centre, g.op("Sub", last, first), axis=1)
        scale = np.concatenate([np.full(s * s, stride) for s, stride in zip(sides, _STRIDES, strict=True)])
        return g.op("Mul", box, g.const(scale[None, None].astype(np.float32)))
