"""Attention as one computation: two matrix products with a softmax over the keys between them."""

from tilegraph.ops.attention.lower import CONTRACTIONS, lower_attention, plan_attention
from tilegraph.ops.attention.space import FEW, AttentionSpace, Cache, Part, Score

__all__ = ["CONTRACTIONS", "FEW", "AttentionSpace", "Cache", "Part", "Score", "lower_attention", "plan_attention"]
