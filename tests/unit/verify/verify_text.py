"""Models in ONNX's text form as onnx_ir models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper, parser
from onnx_ir.passes.common import ShapeInferencePass

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


def parse(text: str, opset: int = 21, **weights: np.ndarray[Any, Any]) -> ir.Model:
    """The model `text` with `weights` as initializers and shapes inferred."""
    model = parser.parse_model(HEAD + text)
    model.opset_import[0].version = opset
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return ShapeInferencePass()(ir.serde.deserialize_model(model)).model
