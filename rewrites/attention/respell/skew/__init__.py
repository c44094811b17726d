"""Scores and weights that are moved about on their way, as sliding chunks are: proven element by element."""

from tilegraph.rewrites.attention.respell.skew.proof import read
from tilegraph.rewrites.attention.respell.skew.rule import unskewed
from tilegraph.rewrites.attention.respell.skew.stand_in import Untraceable

__all__ = ["Untraceable", "read", "unskewed"]
