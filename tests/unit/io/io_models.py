"""Small models in files, for the tests of `tilegraph.io`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def parse(text: str) -> onnx.ModelProto:
    """A model in onnx's text form."""
    return onnx.parser.parse_model(text)


def relu() -> onnx.ModelProto:
    return parse("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[batch, seq, 4] x) => (float[batch, seq, 4] y) { y = Relu(x) }""")


def with_weights(folder: Path, *, size: int = 64, location: str = "m.data") -> Path:
    """`y = x @ w` with the weight of `size` x `size` floats in external data beside the model."""
    weight = np.arange(size * size, dtype=np.float32).reshape(size, size) / 7
    proto = parse(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, {size}] x) => (float[n, {size}] y) <float[{size}, {size}] w> {{ y = MatMul(x, w) }}""")
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = folder / "m.onnx"
    onnx.save(proto, str(path), save_as_external_data=True, location=location, size_threshold=0)
    return path


def external_entry(proto: onnx.ModelProto, key: str, value: str) -> None:
    """Sets one external-data entry of the first initializer."""
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = value
            return
    proto.graph.initializer[0].external_data.add(key=key, value=value)
