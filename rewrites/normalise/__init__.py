"""Normalisation: the same model with its shapes known, its constants computed and its no-ops gone.

`NORMALISE` is the ordered tuple of passes. Operators that ONNX Runtime only knows as functions come apart first, and
Identity nodes go, which no other pass then has to look through. Shapes come before folding because a shape computation
is constant once extents are; folding infers shapes again whenever it has decided a branch or computed an extent. A
shortened cast chain may be a no-op, and so may a Concat without its empty operands: both come before identities that
only shapes tell. Duplicates come after everything that makes nodes alike, and dead code last.
Reshape targets, extents and operands that broadcast lose what they need not depend on as soon as extents are known.
"""

from tilegraph.passes.base import Pass
from tilegraph.rewrites.normalise.casts import CastChains
from tilegraph.rewrites.normalise.constants import LiftConstants
from tilegraph.rewrites.normalise.cse import CommonSubexpressions
from tilegraph.rewrites.normalise.dead_code import DeadCode
from tilegraph.rewrites.normalise.dedup_initializers import DedupInitializers
from tilegraph.rewrites.normalise.empty_operands import EmptyOperands
from tilegraph.rewrites.normalise.expands import Expands
from tilegraph.rewrites.normalise.fold import Fold
from tilegraph.rewrites.normalise.functions import ExpandFunctions
from tilegraph.rewrites.normalise.identity import IdentityElimination, WrittenIdentities
from tilegraph.rewrites.normalise.raise_opset import RaiseOpset
from tilegraph.rewrites.normalise.reshape_targets import ReshapeTargets
from tilegraph.rewrites.normalise.shape_sources import ShapeSources
from tilegraph.rewrites.normalise.shapes import Shapes, symbolic_contents
from tilegraph.rewrites.normalise.unused_initializers import UnusedInitializers

NORMALISE: tuple[Pass, ...] = (
    ExpandFunctions(),
    RaiseOpset(),
    LiftConstants(),
    WrittenIdentities(),
    Shapes(),
    Fold(),
    ReshapeTargets(),
    ShapeSources(),
    CastChains(),
    EmptyOperands(),
    Expands(),
    IdentityElimination(),
    DedupInitializers(),
    CommonSubexpressions(),
    DeadCode(),
    UnusedInitializers(),
)

__all__ = ["NORMALISE", "CastChains", "CommonSubexpressions", "DeadCode", "DedupInitializers", "EmptyOperands",
           "ExpandFunctions", "Expands", "Fold", "IdentityElimination", "LiftConstants", "RaiseOpset",
           "ReshapeTargets", "ShapeSources", "Shapes", "UnusedInitializers", "WrittenIdentities", "symbolic_contents"]
