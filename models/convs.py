"""Kernels of convolutions alone, one thread: `python -m models.convs [--only TEXT] [--rounds 7] [--readme]`.

Shapes of ResNet-50, MobileNetV2 and PP-OCR, in blocks, with bias and Relu. Each round calls all kernels in turn, so
that noise meets all of them; the least CPU time counts. Weights and values are in the caches as far as they fit: a
kernel is called some times before it is timed. The share of the peak (models/peak.py, measured in every round, the
most of them) is of the definition's products; Winograd's algorithm takes fewer, so that its share may pass 1. The
limit is the products at the peak, or a copy by numpy of as many bytes as are read and written, whichever takes longer.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from models.native import bound
from models.peak import peak
from models.report import between_markers
from tilegraph.codegen.conv import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.compiler.filters import pack_filters
from tilegraph.ops.conv import ConvSpace, algorithm, block, blocked_shape, lower_conv, plan_conv, unblock
from tilegraph.ops.prims import Lowered

Array = np.ndarray[Any, Any]
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "conv.md"
_CALLS = 4  # that warm the caches
_SAMPLE_S = 1e-3


@dataclass(frozen=True)
class Shape:
    """A convolution of `channels` to `filters` over an image of `height` x `width`, padded by half of its window."""

    channels: int
    filters: int
    height: int
    width: int
    window: int = 1
    stride: int = 1
    depthwise: bool = False
    batch: int = 1

    @property
    def name(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        kind = f"depthwise {self.channels}" if self.depthwise else f"{self.channels}-{self.filters}"
        size = f"{self.height}" if self.height == self.width else f"{self.height}x{self.width}"
        return f"{self.window}x{self.window}{stride} {kind} @{size}"


SHAPES = (
    Shape(3, 64, 224, 224, 7, 2), Shape(3, 32, 224, 224, 3, 2),
    *(Shape(c, k, s, s) for c, k, s in ((64, 64, 56), (64, 256, 56), (256, 64, 56), (512, 128, 28), (128, 512, 28),
                                        (1024, 256, 14), (256, 1024, 14), (2048, 512, 7), (512, 2048, 7),
                                        (32, 16, 112), (96, 24, 56), (144, 32, 28), (384, 96, 14), (96, 576, 14),
                                        (576, 160, 7), (160, 960, 7), (960, 320, 7))),
    Shape(480, 480, 6, 80), Shape(240, 240, 12, 80), Shape(256, 512, 56, 56, 1, 2),
    *(Shape(c, c, s, s, 3, 2) for c, s in ((128, 56), (256, 28), (512, 14))),
    *(Shape(c, c, s, s, 3) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))), Shape(96, 24, 160, 160, 3),
    *(Shape(c, c, s, s, 3, stride, True) for c, s, stride in ((32, 112, 1), (96, 112, 2), (144, 56, 1), (384, 14, 1),
                                                              (960, 7, 1))),
    Shape(240, 240, 12, 80, 5, 1, True), Shape(480, 480, 6, 80, 5, 1, True),
)


@dataclass(frozen=True)
class Timed:
    """`run` calls the kernel once, on `memory`; `copy` moves as many bytes; `flop` of the definition."""

    shape: Shape
    algorithm: str
    run: Callable[[], None]
    copy: Callable[[], None]
    flop: float
    memory: tuple[Array, ...]


def lowered_shape(shape: Shape, lanes: int) -> Lowered:
    """Convolution, bias and Relu in blocks of `lanes`; an image of at most 4 channels is plain, as an input."""
    pad, groups = shape.window // 2, shape.channels if shape.depthwise else 1
    plain = ir.Shape([shape.batch, shape.channels, shape.height, shape.width])
    rows, columns = (-(-s // shape.stride) for s in (shape.height, shape.width))
    x = ir.Value(name="x", shape=plain if shape.channels <= 4 else blocked_shape(plain, lanes),
                 type=ir.TensorType(ir.DataType.FLOAT))
    weights, bias = (ir.Value(name=name, shape=ir.Shape(extents), type=ir.TensorType(ir.DataType.FLOAT))
                     for name, extents in (("w", [shape.filters, shape.channels // groups, shape.window, shape.window]),
                                           ("b", [shape.filters])))
    nodes: list[ir.Node] = []
    source = x
    if shape.channels > 4:
        views = unblock(x, shape.channels)
        nodes.extend(views.nodes)
        source = views.value
    window = [ir.AttrInt64s("pads", [pad] * 4), ir.AttrInt64s("strides", [shape.stride] * 2),
              ir.AttrInt64("group", groups)]
    conv = ir.Node("", "Conv", [source, weights, bias], window, name="conv")
    views = block(_named(conv, ir.Shape([shape.batch, shape.filters, rows, columns])), lanes)
    relu = ir.Node("", "Relu", [views.value], name="relu")
    nodes += [conv, *views.nodes, relu]
    return lower_conv(nodes, [_named(relu, views.value.shape)], {"": 20})


def _named(node: ir.Node, shape: ir.Shape | None) -> ir.Value:
    """The result of `node`, which is called like it."""
    value = node.outputs[0]
    value.name, value.shape, value.type = node.name, shape, ir.TensorType(ir.DataType.FLOAT)
    return value


def timed(shape: Shape, isa: Isa) -> Timed:
    """Compiles the kernel of `shape` and gives it random numbers."""
    lanes = isa.vector_bits // 32
    lowered = lowered_shape(shape, lanes)
    space: ConvSpace = plan_conv(lowered)
    made = generate(space, "tg_conv", isa.vector_bits)
    names = dict(lowered.inputs)
    how = dict(made.kernel.filters)
    rng = np.random.default_rng(0)
    arrays = []
    for slot in made.kernel.slots:
        assert names[slot].shape is not None
        array = rng.standard_normal(names[slot].shape.numpy(), np.float32)
        arrays.append(_aligned(pack_filters(array, how[slot]) if slot in how else array))
    read = next(a for slot, a in zip(made.kernel.slots, arrays, strict=True) if slot == space.source_slot)
    result = _aligned(np.zeros([d.value for d in lowered.outputs[0].shape], np.float32))
    scratch = _aligned(np.zeros(made.kernel.scratch.value // 4 + 16, np.float32))
    memory = (*arrays, result, scratch)
    pointers = [a.ctypes.data for a in memory]
    moved = np.zeros((read.nbytes + result.nbytes) // 8, np.float32)
    to = np.zeros_like(moved)
    return Timed(shape, algorithm(space), bound(made, isa, pointers), lambda: np.copyto(to, moved),
                 2.0 * space.multiplications().value, memory)


def measure(cases: list[Timed], rounds: int) -> tuple[float, list[tuple[float, float]]]:
    """The peak, and the least seconds of a call and of a copy of each case."""
    best, most = [(math.inf, math.inf)] * len(cases), 0.0
    for _ in range(rounds):
        most = max(most, peak.__wrapped__())
        for k, case in enumerate(cases):
            best[k] = min(best[k][0], _least(case.run)), min(best[k][1], _least(case.copy))
    return most, best


def table(cases: list[Timed], most: float, times: list[tuple[float, float]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"Peak {most / 1e9:.0f} GFLOP/s, one thread.", "", "| convolution | kernel | µs | of peak | of limit |",
             "|---|---|---|---|---|"]
    for case, (seconds, copied) in zip(cases, times, strict=True):
        lines.append(f"| {case.shape.name} | {case.algorithm} | {seconds * 1e6:.0f} | "
                     f"{case.flop / seconds / most:.2f} | {max(case.flop / most, copied) / seconds:.2f} |")
    return lines


def _least(run: Callable[[], None]) -> float:
    for _ in range(_CALLS):
        run()
    best, end = math.inf, time.thread_time() + _SAMPLE_S
    while True:
        begin = time.thread_time()
        run()
        now = time.thread_time()
        best = min(best, now - begin)
        if now >= end:
            return best


def _aligned(array: Array) -> Array:
    """A copy that begins at a line of the cache."""
    room = np.zeros(array.size + 16, np.float32)
    start = -room.ctypes.data % 64 // 4
    made = room[start:start + array.size].reshape(array.shape)
    made[...] = array
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--readme", action="store_true", help="write the table into docs/conv.md")
    given = parser.parse_args()
    isa = host()
    cases = [timed(s, isa) for s in SHAPES if given.only in s.name]
    lines = table(cases, *measure(cases, given.rounds))
    print("\n".join(lines))
    if given.readme:
        text = between_markers(DOCUMENT.read_text(encoding="utf-8"), "\n".join(lines), "convs")
        DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
