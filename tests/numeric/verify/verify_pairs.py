"""Small models in ONNX's text form, saved where verify can read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def save(path: Path, text: str, **weights: np.ndarray[Any, Any]) -> Path:
    """Writes the model `text` (without its header unless it has one) with `weights` as initializers."""
    model = parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, path)
    return path


class Pairs:
    """Makes the original and candidates of one test in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def __call__(self, text: str, **weights: np.ndarray[Any, Any]) -> Path:
        self._count += 1
        return save(self.folder / f"model{self._count}.onnx", text, **weights)
