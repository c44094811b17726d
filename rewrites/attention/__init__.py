"""Attention, however it was exported, becomes one composite."""

from tilegraph.rewrites.attention.folded import ListFolded, NoteAttentions
from tilegraph.rewrites.attention.fuse import STAGE, AttentionFusion

__all__ = ["STAGE", "AttentionFusion", "ListFolded", "NoteAttentions"]
