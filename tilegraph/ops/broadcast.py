"""Numpy broadcasting of symbolic shapes (ONNX spec, "Multidirectional Broadcasting")."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.ops.index import Ix
from tilegraph.ops.prims import Decline
from tilegraph.spec.dims import Dim, Shape


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The common shape; `Decline` where two extents are neither equal for certain nor 1."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        extent = Dim.of(1)
        for shape in shapes:
            k = axis - (rank - len(shape))
            if k < 0 or shape[k] == 1:
                continue
            if extent == 1:
                extent = shape[k]
            elif extent != shape[k]:
                raise Decline(f"extents {extent} and {shape[k]} are not equal for certain")
        result.append(extent)
    return tuple(result)


def project(indices: tuple[Ix, ...], shape: Shape) -> tuple[Ix, ...]:
    """The indices of an operand of `shape` that broadcasts to where `indices` point."""
    tail = indices[len(indices) - len(shape):] if shape else ()
    return tuple(Ix() if extent == 1 else ix for ix, extent in zip(tail, shape, strict=True))
