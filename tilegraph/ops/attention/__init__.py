"""Attention as one computation: two matrix products with a softmax over the keys between them."""

from tilegraph.ops.attention.lower import CONTRACTIONS, MAX_DEPTH, lower_attention, plan_attention, plan_trusting
from tilegraph.ops.attention.space import (
    FEW,
    MASKED_BLOCK,
    PARTIAL,
    PIECE_HEAD,
    TABLE,
    AttentionSpace,
    Cache,
    Part,
    Score,
)

__all__ = ["CONTRACTIONS", "FEW", "MASKED_BLOCK", "MAX_DEPTH", "PARTIAL", "PIECE_HEAD", "TABLE", "AttentionSpace",
           "Cache", "Part", "Score", "lower_attention", "plan_attention", "plan_trusting"]
