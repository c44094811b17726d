"""Estimated times of convolutions and pooling, in ONNX Runtime and in our kernels, and of layout conversions.

Round figures for one thread of a Zen 5 core (full-width AVX-512); they only need to rank. Those of ONNX Runtime: its
profiler on one layer at a time, inside its blocked layout, 36 shapes of ResNet-50, MobileNetV2 and detectors.
"""

from __future__ import annotations

from dataclasses import dataclass

_FLOP_PER_US = 266_000.0  # 64 a cycle
_BYTES_PER_US = 60_000.0  # out of L2 and L3
_FAR_BYTES_PER_US = 22_000.0  # beyond what the caches hold
_FAR_BYTES = 4 << 20
_RUNTIME_NODE_US = 1.6
_KERNEL_US = 0.5

# Share of the peak in ONNX Runtime: from 0.95 down to 0.75 on images of 7x7, where its tiles do not divide a row.
_RUNTIME_SHARE = 0.95
_RUNTIME_SMALL_SHARE = 0.78
_RUNTIME_DEPTHWISE_SHARE = 0.40
_RUNTIME_GROUPED_SHARE = 0.15  # a small product for each group, in plain layout
_RUNTIME_TRANSPOSED_SHARE = 0.25  # a product and a scatter, in plain layout
_SMALL_ROWS = 49

# Of our kernels, by algorithm; Winograd's is above 1 because its products are fewer than those of
# the definition: 1.8 to 2 for a layer alone, less where weights, which are 16/9 as large, come out of memory.
_KERNEL_SHARES = {"direct": 0.95, "winograd": 1.4, "winograd4": 1.9, "taps": 0.65, "groups": 0.5}


@dataclass(frozen=True)
class Work:
    """A window: kind as in `ops.conv` ("conv", "depthwise", "grouped", pools) and the algorithm of our kernel, `depth`
    channels that a result sums over, `taps` of the window, `results` positions (N·H'·W'), `read` and `written` bytes.
    `phases` > 1: a transposed one; `results` are the positions of the source, of which each makes so many.
    `halves`: how many vectors of half a block of filters our kernel takes (`ops.conv.half_vectors`), 0 for whole ones.
    """

    kind: str
    algorithm: str
    lanes: int
    depth: int
    filters: int
    taps: int
    results: int
    read: int
    written: int
    plain: bool = False  # the source is read in plain layout
    phases: int = 1
    narrow: bool = False  # filters and phases share one block
    halves: int = 0

    @property
    def flop(self) -> float:
        """Products and sums with channels filled up to whole blocks, as every engine computes them."""
        depth = self.depth if self.plain or self.kind != "conv" else _whole(self.depth, self.lanes)
        width = self.lanes if self.narrow else _whole(self.filters, self.lanes) * self.phases
        return 2.0 * self.taps * self.results * depth * width

    @property
    def kernel_flop(self) -> float:
        """Those of our kernels, which take half a block of filters for what it is."""
        if not self.halves:
            return self.flop
        return self.flop * self.halves * (self.lanes // 2) / _whole(self.filters, self.lanes)


def runtime_us(work: Work) -> float:
    """In ONNX Runtime, source and result in its blocked layout; small groups and transposed ones in plain layout."""
    if work.phases > 1:
        flop = 2.0 * work.results * work.depth * work.filters * work.phases * work.taps
        return _RUNTIME_NODE_US + flop / (_FLOP_PER_US * _RUNTIME_TRANSPOSED_SHARE)
    if work.kind == "conv":
        share = _RUNTIME_SMALL_SHARE if work.results <= _SMALL_ROWS else _RUNTIME_SHARE
        return _RUNTIME_NODE_US + max(work.flop / (_FLOP_PER_US * share), _moved_us(work.written))
    share = _RUNTIME_GROUPED_SHARE if work.kind == "grouped" else _RUNTIME_DEPTHWISE_SHARE
    return _RUNTIME_NODE_US + _windows_us(work, share)


def kernel_us(work: Work) -> float:
    """In our kernels, epilogue included (it works on registers)."""
    share = _KERNEL_SHARES[work.algorithm]
    if work.kind == "conv":
        return _KERNEL_US + max(work.kernel_flop / (_FLOP_PER_US * share), _moved_us(work.written))
    return _KERNEL_US + _windows_us(work, share)


def convert_us(size: int, whole: bool) -> float:
    """Bringing a value of `size` bytes into blocks or out of them; `whole`: its channels fill whole blocks."""
    return _KERNEL_US + 2 * _moved_us(size) * (1.0 if whole else 2.0)


def reorder_us(size: int) -> float:
    """The same in ONNX Runtime, between its own blocked layout and the plain one: 18 µs for 0.8 MB, 580 for 12.8."""
    return _RUNTIME_NODE_US + size / (_FAR_BYTES_PER_US if size > _FAR_BYTES else 2 * _FAR_BYTES_PER_US)


def pass_us(size: int) -> float:
    """One sweep over `size` bytes, read or written."""
    return _moved_us(size)


def _windows_us(work: Work, share: float) -> float:
    return max(work.flop / (_FLOP_PER_US * share), _moved_us(work.read + work.written))


def _moved_us(size: int) -> float:
    return size / (_FAR_BYTES_PER_US if size > _FAR_BYTES else _BYTES_PER_US)


def _whole(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes
