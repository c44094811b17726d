"""Shape inference with symbolic extents: a forward walk that follows types, shapes and small integer contents.

`arith` compares and broadcasts extents, `info` holds what is known of a value, `rules_*` say how ops change it, `cpp`
asks onnx's own inference for the rest, `walk` goes over the graph and its subgraphs.
"""

from tilegraph.rewrites.normalise.infer.info import Info
from tilegraph.rewrites.normalise.infer.walk import Inference, infer

__all__ = ["Inference", "Info", "infer"]
