"""Operators in float16 against ONNX Runtime's float32 kernels on the same numbers: rounded once, at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import tilegraph
from tilegraph.compiler import optimize

Array = np.ndarray[Any, Any]
B, N, D = 2, 4, 16
RNG = np.random.default_rng(0)
_TYPES = {"float32": 1, "float16": 10, "bool": 9, "int32": 6}


def half(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float16)


def model(node: onnx.NodeProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    kind = _TYPES[str(feeds["q"].dtype)]
    inputs = [helper.make_tensor_value_info(k, _TYPES[str(v.dtype)], v.shape) for k, v in feeds.items()]
    outputs = [helper.make_tensor_value_info(o, kind, None) for o in node.output]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), ir_version=10, opset_imports=[
        helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)])


def check(node: onnx.NodeProto, feeds: dict[str, Array], folder: Path) -> None:
    wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feeds.items()}
    session = ort.InferenceSession(model(node, wide).SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, wide)
    made = optimize(model(node, feeds).SerializeToString(), offload="all")
    assert [a["taken"] for a in made.summary.attentions] == [True], made.summary.attentions
    made.save(folder / "m")
    tilegraph.register()
    session = ort.InferenceSession(str(folder / "m" / "model.onnx"),
                                   providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    for name, want, got in zip(node.output, wanted, session.run(None, feeds), strict=True):
        assert got.dtype == np.float16
        if name == "o":
            assert np.std(want) > 0.01
            assert (np.abs(got - want) <= np.abs(want) * 2 ** -10.98 + 1e-6).all()
        else:
            assert got.tobytes() == want.astype(np.float16).tobytes()


@pytest.mark.parametrize(("queries", "past"), [(9, 0), (1, 70), (9, 70)])
@pytest.mark.parametrize("mask", ["none", "bool", "float16"])
def test_attention(queries: int, past: int, mask: str, tmp_path: Path) -> None:
    feeds = {"q": half(B, N, queries, D), "k": half(B, 2, queries, D), "v": half(B, 2, queries, D)}
    names, outputs = ["q", "k", "v", "", "", ""], ["o", "nk", "nv"]
    if mask != "none":
        shown = RNG.random((queries, past + queries)) < 0.7
        shown[:, 0] = True
        names[3], feeds["m"] = "m", shown if mask == "bool" else np.where(shown, half(*shown.shape), -np.inf).astype(
            np.float16)
    if past:
        names[4:], feeds["pk"], feeds["pv"] = ["pk", "pv"], half(B, 2, past, D), half(B, 2, past, D)
    check(helper.make_node("Attention", names, outputs, is_causal=int(mask == "none")), feeds, tmp_path)


@pytest.mark.parametrize("past", [0, 33])
def test_multi_head_attention(past: int, tmp_path: Path) -> None:
    feeds = {n: half(B, 7, N * D) for n in "qkv"} | {"a": half(1, N, 7, 7 + past)}
    names = ["q", "k", "v", "", "", "a", "", ""]
    if past:
        names[6:], feeds["pk"], feeds["pv"] = ["pk", "pv"], half(B, N, past, D), half(B, N, past, D)
    check(helper.make_node("MultiHeadAttention", names, ["o", "nk", "nv"] if past else ["o"], domain="com.microsoft",
                           num_heads=N), feeds, tmp_path)
