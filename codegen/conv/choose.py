"""Which generator emits a space."""

from __future__ import annotations

from tilegraph.codegen.conv import direct, taps
from tilegraph.codegen.generated import Generated
from tilegraph.ops.conv import ConvSpace
from tilegraph.ops.prims import Decline


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits. `Decline` below 256."""
    if vector_bits < 256:
        raise Decline(f"convolutions need vectors of 256 bits or more, not {vector_bits}")
    emit = direct.generate if space.kind == "conv" else taps.generate
    return emit(space, name, vector_bits)
