"""Other spellings of what is attention already: the same values by other nodes, where they lead to one kernel.

A trial on a copy of the model decides which spellings are changed; a product that stays with ONNX Runtime stays as it
is.
"""

from tilegraph.rewrites.attention.respell.trial import respell_winners

__all__ = ["respell_winners"]
