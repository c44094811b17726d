"""Inferred shapes of com.microsoft ops against what ONNX Runtime produces."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from norm_ort import run
from onnx import helper, numpy_helper

from tilegraph.io import load
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import Shapes
from tilegraph.rewrites.normalise.infer.info import shape_of

B, S = 2, 6
RNG = np.random.default_rng(1)


def f(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(np.float32)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 255, shape).astype(np.uint8)


X = f(B, S, 32)
CASES: list[tuple[str, list[np.ndarray[Any, Any] | None], dict[str, Any], int]] = [
    # op, inputs (the first has a symbolic batch and length), attributes, outputs
    ("Gelu", [X], {}, 1),
    ("FastGelu", [X, f(32)], {}, 1),
    ("BiasGelu", [X, f(32)], {}, 1),
    ("QuickGelu", [X], {}, 1),
    ("FusedMatMul", [X, f(B, S, 32)], {"transB": 1}, 1),
    ("FusedMatMul", [X, f(B, S, 16)], {"transA": 1, "alpha": 0.5}, 1),
    ("SkipLayerNormalization", [X, f(B, S, 32), f(32), f(32)], {}, 1),
    ("SkipLayerNormalization", [X, f(B, S, 32), f(32), f(32), f(32)], {}, 4),
    ("SkipSimplifiedLayerNormalization", [X, f(B, S, 32), f(32)], {}, 4),
    ("Attention", [X, f(32, 96), f(96)], {"num_heads": 4}, 1),
    ("Attention", [X, f(32, 80), f(80)], {"num_heads": 4, "qkv_hidden_sizes": [32, 32, 16]}, 1),
    ("MultiHeadAttention", [X, f(B, S, 32), f(B, S, 16)], {"num_heads": 4}, 1),
    ("MatMulNBits", [X, u8(24, 1, 16), f(24)], {"K": 32, "N": 24, "bits": 4, "block_size": 32}, 1),
    ("DynamicQuantizeMatMul", [X, u8(32, 24), np.array([0.1], np.float32), np.array([128], np.uint8)], {}, 1),
    ("MatMulIntegerToFloat",
     [u8(B, S, 32), u8(32, 24), np.array([0.1], np.float32), np.array([0.1], np.float32)], {}, 1),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "outputs"), CASES)
def test_shape_and_type(op: str, inputs: list[np.ndarray[Any, Any] | None], attributes: dict[str, Any],
                        outputs: int) -> None:
    names = [f"i{k}" for k in range(len(inputs))]
    kept = [o if k in (0, outputs - 1) else "" for k, o in enumerate(f"o{k}" for k in range(outputs))]
    node = helper.make_node(op, names, kept, domain="com.microsoft", **attributes)
    infos, tensors = [], []
    for name, array in zip(names, inputs, strict=True):
        assert array is not None
        if array.ndim == 3 and array.shape[:2] == (B, S):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(helper.make_tensor_value_info(name, kind, ["batch", "length", array.shape[2]]))
        else:
            tensors.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=o) for o in kept if o], tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    model = load(proto)
    Shapes().run(model, PassContext())
    real = run(proto, {i.name: a for i, a in zip(infos, [x for x in inputs if x is not None and x.ndim == 3
                                                         and x.shape[:2] == (B, S)], strict=True)})
    for output in model.graph.outputs:
        shape, array = shape_of(output.shape), real[output.name or ""]
        assert shape is not None
        assert None not in shape
        assert tuple(d.evaluate({"batch": B, "length": S}) for d in shape if d is not None) == array.shape
        assert output.dtype is not None
        assert output.dtype.numpy() == array.dtype
