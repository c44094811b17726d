"""A matrix product with a constant matrix and what is computed point by point from it, as one computation."""

from tilegraph.ops.gemm.lower import PRODUCTS, lower_gemm, plan_gemm
from tilegraph.ops.gemm.space import GemmSpace, Product

__all__ = ["PRODUCTS", "GemmSpace", "Product", "lower_gemm", "plan_gemm"]
