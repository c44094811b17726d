"""Vector math written in the primitives of `tilegraph.ops.math`: no table look-ups, no branches."""

from tilegraph.ops.vecmath.exponential import erf, exp, exp_minus_abs, expm1, mish, sigmoid, softplus, tanh
from tilegraph.ops.vecmath.logarithm import log, log1p

__all__ = ["erf", "exp", "exp_minus_abs", "expm1", "log", "log1p", "mish", "sigmoid", "softplus", "tanh"]
