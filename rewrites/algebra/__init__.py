"""Graph algebra: equalities of real arithmetic that leave ONNX Runtime, or our kernels, with less to do.

`ALGEBRA` is the ordered tuple of passes, for a model that is normalised. Recurrent operators of one step are taken
apart first, so that all others see what they compute. Transposes follow, because they keep nodes apart; Gemm reads
those that are left. Tables are looked up before they are computed, hard sigmoids found before their divisions are
folded away. Scales and shifts go into the weights before them first, because that is always exact, then into the
weights after them. Then convolutions pad for themselves, and become sums or change their rank; what is left between
them becomes BatchNormalization, and what is left elsewhere is shortened. Dead code goes last.
docs/rewrites.md describes each.
"""

from tilegraph.passes.base import Pass
from tilegraph.rewrites.algebra.affine_chain import AffineChain
from tilegraph.rewrites.algebra.channel_norm import ChannelNorm
from tilegraph.rewrites.algebra.clean_up import CleanUp
from tilegraph.rewrites.algebra.conv_rank import ConvRank
from tilegraph.rewrites.algebra.fold_after import FoldAfter
from tilegraph.rewrites.algebra.fold_before import FoldBefore
from tilegraph.rewrites.algebra.gather_early import GatherEarly
from tilegraph.rewrites.algebra.gemm_transposed import GemmTransposed
from tilegraph.rewrites.algebra.global_pool import GlobalPool
from tilegraph.rewrites.algebra.hard_sigmoid import HardSigmoid
from tilegraph.rewrites.algebra.one_filter import OneFilter
from tilegraph.rewrites.algebra.one_hot import OneHotGather
from tilegraph.rewrites.algebra.pad_conv import PadConv
from tilegraph.rewrites.algebra.rnn_step import RnnStep
from tilegraph.rewrites.algebra.transposes import Transposes

ALGEBRA: tuple[Pass, ...] = (
    RnnStep(),
    Transposes(),
    GemmTransposed(),
    OneHotGather(),
    GatherEarly(),
    HardSigmoid(),
    FoldAfter(),
    FoldBefore(),
    PadConv(),
    OneFilter(),
    ConvRank(),
    ChannelNorm(),
    GlobalPool(),
    AffineChain(),
    CleanUp(),
)

__all__ = ["ALGEBRA", "AffineChain", "ChannelNorm", "CleanUp", "ConvRank", "FoldAfter", "FoldBefore", "GatherEarly",
           "GemmTransposed", "GlobalPool", "HardSigmoid", "OneFilter", "OneHotGather", "PadConv", "RnnStep",
           "Transposes"]
