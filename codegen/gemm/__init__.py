"""The kernel generators for matrix products with a constant matrix."""

from tilegraph.codegen.gemm import kernel, stored
from tilegraph.codegen.generated import Generated
from tilegraph.ops.gemm import GemmSpace


def generate(space: GemmSpace, name: str, vector_bits: int) -> Generated:
    """Emits `space` as the function `name` for registers of `vector_bits` bits."""
    module = kernel if space.matrix is None else stored
    return module.generate(space, name, vector_bits)


__all__ = ["generate"]
