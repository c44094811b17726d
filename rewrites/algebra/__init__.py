"""Graph algebra: equalities of real arithmetic that leave ONNX Runtime, or our kernels, with less to do.

`ALGEBRA` is the ordered tuple of passes, for a model that is normalised. Hard sigmoids are found before their divisions
are folded away. Scales and shifts go into the weights before them first, because that is always exact, then into the
weights after them; what is left between convolutions becomes BatchNormalization. Dead code and unused initializers
go last.
"""

from tilegraph.passes.base import Pass
from tilegraph.rewrites.algebra.channel_norm import ChannelNorm
from tilegraph.rewrites.algebra.clean_up import CleanUp
from tilegraph.rewrites.algebra.conv_rank import ConvRank
from tilegraph.rewrites.algebra.fold_after import FoldAfter
from tilegraph.rewrites.algebra.fold_before import FoldBefore
from tilegraph.rewrites.algebra.hard_sigmoid import HardSigmoid
from tilegraph.rewrites.algebra.one_hot import OneHotGather

ALGEBRA: tuple[Pass, ...] = (
    OneHotGather(),
    HardSigmoid(),
    FoldAfter(),
    FoldBefore(),
    ConvRank(),
    ChannelNorm(),
    CleanUp(),
)

__all__ = ["ALGEBRA", "ChannelNorm", "CleanUp", "ConvRank", "FoldAfter", "FoldBefore", "HardSigmoid", "OneHotGather"]
