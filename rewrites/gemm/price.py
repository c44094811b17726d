"""Where a kernel of ours beats ONNX Runtime's matrix product. Bounds from measurements, see docs/gemm.md."""

from __future__ import annotations

from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline

MIN_DEPTH = 64
MIN_COLUMNS = 48
_PANEL = 48
_MAX_PADDING = 1.15  # columns computed for each that is wanted


def check_price(space: GemmSpace) -> None:
    """`Decline` with the reason where ONNX Runtime is expected to be as fast."""
    if space.depth < MIN_DEPTH or space.n < MIN_COLUMNS:
        raise Decline(f"ONNX Runtime keeps it: a matrix of [{space.depth}, {space.n}] is smaller than "
                      f"[{MIN_DEPTH}, {MIN_COLUMNS}]")
    padded = min(-(-space.n // width) * width for width in (_PANEL, _PANEL * 2 // 3))
    if padded > _MAX_PADDING * space.n:
        raise Decline(f"ONNX Runtime keeps it: {space.n} columns would be computed as {padded}")
