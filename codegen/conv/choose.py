"""Which generator emits a space."""

from __future__ import annotations

from tilegraph.codegen.conv import direct, groups, narrow, pairs, taps, winograd
from tilegraph.codegen.generated import Generated
from tilegraph.ops.conv import ConvSpace, algorithm
from tilegraph.ops.prims import Decline


def generate(space: ConvSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits. `Decline` below 256."""
    if vector_bits < 256:
        raise Decline(f"convolutions need vectors of 256 bits or more, not {vector_bits}")
    if space.plain is not None:
        return narrow.generate(space, name, vector_bits)
    if algorithm(space) == "taps" and pairs.fits(space, vector_bits):
        return pairs.generate(space, name, vector_bits)
    emit = {"direct": direct.generate, "groups": groups.generate, "taps": taps.generate,
            "winograd": winograd.generate,
            "winograd4": winograd.generate}[algorithm(space)]
    return emit(space, name, vector_bits)
