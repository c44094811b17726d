"""The kernel generators for matrix products with a constant matrix."""

from collections.abc import Collection

from tilegraph.codegen.gemm import bfloat16, blocks, integers, plain, stored, words
from tilegraph.codegen.generated import Generated
from tilegraph.ops.gemm import GemmSpace
from tilegraph.ops.gemm.space import Blocks, Integers


def generate(space: GemmSpace, name: str, vector_bits: int, features: Collection[str] = ()) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits; `features` may be used beside."""
    if isinstance(space.quantized, Integers):
        return integers.generate(space, name, vector_bits, features)
    if isinstance(space.quantized, Blocks) and not space.quantized.rounded:
        return words.generate(space, name, vector_bits)
    if space.quantized is not None:
        return blocks.generate(space, name, vector_bits, features)
    if space.precision == "bfloat16":
        return bfloat16.generate(space, name, vector_bits)
    if space.matrix is not None:
        return stored.generate(space, name, vector_bits)
    return plain.generate(space, name, vector_bits)


__all__ = ["generate"]
