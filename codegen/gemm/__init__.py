"""The kernel generator for matrix products with a constant matrix."""

from tilegraph.codegen.gemm.kernel import generate

__all__ = ["generate"]
