"""The kernel generators for matrix products with a constant matrix."""

from tilegraph.codegen.gemm import bfloat16, kernel, stored
from tilegraph.codegen.generated import Generated
from tilegraph.ops.gemm import GemmSpace


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    if space.precision == "bfloat16":
        return bfloat16.generate(space, name, vector_bits)
    if space.matrix is not None:
        return stored.generate(space, name, vector_bits)
    return kernel.generate(space, name, vector_bits)


__all__ = ["generate"]
