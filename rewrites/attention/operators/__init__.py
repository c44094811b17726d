"""Operators that are attention by themselves, taken apart into the nodes that attention fusion reads.

One file for each operator. An operator that ONNX Runtime has a kernel for is only taken apart where the attention is
then taken (`take_winners`); FlexAttention, for which it has none, always (`FlexBodies`).
"""

from tilegraph.rewrites.attention.operators.build import Owner, owner_of
from tilegraph.rewrites.attention.operators.flex_bodies import FlexBodies
from tilegraph.rewrites.attention.operators.trial import take_winners

__all__ = ["FlexBodies", "Owner", "owner_of", "take_winners"]
