"""Matrix products with constant matrices become composites, together with what follows them point by point."""

from tilegraph.rewrites.gemm.fuse import GemmFusion
from tilegraph.rewrites.gemm.rounding import PRECISIONS
from tilegraph.rewrites.gemm.weights import WEIGHTS, QuantizeWeights

__all__ = ["PRECISIONS", "WEIGHTS", "GemmFusion", "QuantizeWeights"]
