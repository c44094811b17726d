"""Convolutions and pooling on values in blocked layout, with what is computed point by point from them."""

from tilegraph.ops.conv.algorithm import algorithm, algorithms, half_vectors
from tilegraph.ops.conv.form import Views, block, block_constant, blocked_shape, unblock
from tilegraph.ops.conv.join import JoinSpace, lower_join, plan_join
from tilegraph.ops.conv.lower import lower_conv, plan_conv, plan_fast
from tilegraph.ops.conv.space import ConvSpace, Result, Window
from tilegraph.ops.conv.windows import WINDOWS
from tilegraph.ops.lower.sliding import Axis

__all__ = ["WINDOWS", "Axis", "ConvSpace", "JoinSpace", "Result", "Views", "Window", "algorithm",
           "algorithms", "block", "block_constant", "blocked_shape", "half_vectors", "lower_conv", "lower_join",
           "plan_conv", "plan_fast", "plan_join", "unblock"]
