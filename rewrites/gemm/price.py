"""Where a kernel of ours beats ONNX Runtime's matrix product. Bounds from measurements, see docs/gemm.md."""

from __future__ import annotations

from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.prims import Decline

MIN_EXTENT = 16  # of the depth and of the columns
MIN_ELEMENTS = 3072  # a row times a smaller matrix takes less than a call of a node


def check_price(space: GemmSpace) -> None:
    """`Decline` with the reason where ONNX Runtime is expected to be as fast.

    The number of rows does not matter: kernels win from one row on.
    """
    shape = f"[{space.depth}, {space.n}]"
    if min(space.depth, space.n) < MIN_EXTENT:
        raise Decline(f"ONNX Runtime keeps it: an extent of {shape} is below {MIN_EXTENT}")
    if space.depth * space.n < MIN_ELEMENTS:
        raise Decline(f"ONNX Runtime keeps it: a matrix of {shape} has fewer than {MIN_ELEMENTS} elements")
