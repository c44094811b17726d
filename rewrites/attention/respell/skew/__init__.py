"""Scores and weights that are moved about on their way, as sliding chunks are: proven element by element."""

from tilegraph.rewrites.attention.respell.skew.rule import unskewed

__all__ = ["unskewed"]
