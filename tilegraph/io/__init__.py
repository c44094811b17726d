"""ONNX in and out: load, save, freezing of dims, inlining of functions, opset conversion.

`load` gives a model on which everything above can rely: checked, functions inlined (except domain `ai.tilegraph`),
every node and value uniquely named, every unknown extent of a graph input named, weights memory-mapped.
"""

from tilegraph.io.convert import to_opset
from tilegraph.io.freeze import freeze_dims, input_dims
from tilegraph.io.load import load
from tilegraph.io.save import ALIGNMENT, save, write_data

__all__ = ["ALIGNMENT", "freeze_dims", "input_dims", "load", "save", "to_opset", "write_data"]
