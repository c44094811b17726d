"""Where a kernel of ours beats ONNX Runtime's matrix product. Bounds from measurements, see docs/gemm.md."""

from __future__ import annotations

from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline

MIN_ROWS = 8  # fewer rows only stream the matrix
MIN_DEPTH = 64
MIN_COLUMNS = 48
_PANEL = 48
_MAX_PADDING = 1.15  # columns computed for each that is wanted


def check_price(space: GemmSpace) -> None:
    """`Decline` with the reason where ONNX Runtime is expected to be as fast.

    A symbolic number of rows is accepted where it is a product of two or more unknown extents (batch and sequence) or
    some multiple of at least `MIN_ROWS`; one unknown extent alone is most often a batch of 1.
    """
    rows = space.m.as_int()
    if rows is None and all(len(mono) < 2 and coef < MIN_ROWS for mono, coef in space.m.terms):
        raise Decline(f"ONNX Runtime keeps it: {space.m} rows may be fewer than {MIN_ROWS}")
    if rows is not None and rows < MIN_ROWS:
        raise Decline(f"ONNX Runtime keeps it: {rows} rows are fewer than {MIN_ROWS}")
    if space.depth < MIN_DEPTH or space.n < MIN_COLUMNS:
        raise Decline(f"ONNX Runtime keeps it: a matrix of [{space.depth}, {space.n}] is smaller than "
                      f"[{MIN_DEPTH}, {MIN_COLUMNS}]")
    padded = min(-(-space.n // width) * width for width in (_PANEL, _PANEL * 2 // 3))
    if padded > _MAX_PADDING * space.n:
        raise Decline(f"ONNX Runtime keeps it: {space.n} columns would be computed as {padded}")
