"""Vector math written in the primitives of `tilegraph.ops.math`: no table look-ups, no branches."""

from tilegraph.ops.vecmath.exponential import erf, exp, exp_minus_abs, expm1, mish, sigmoid, softplus, tanh
from tilegraph.ops.vecmath.half import round_to_bfloat16, round_to_half
from tilegraph.ops.vecmath.inverse import acos, acosh, asin, asinh, atan, atanh, cosh, sinh
from tilegraph.ops.vecmath.logarithm import log, log1p
from tilegraph.ops.vecmath.power import pow_constant, pow_general, rsqrt
from tilegraph.ops.vecmath.trigonometry import cos, sin, tan

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp_minus_abs",
    "expm1",
    "log",
    "log1p",
    "mish",
    "pow_constant",
    "pow_general",
    "round_to_bfloat16",
    "round_to_half",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "softplus",
    "tan",
    "tanh",
]
