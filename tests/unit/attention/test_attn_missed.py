"""No softmax between two products goes unmentioned, and others do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.attention.attn_support import reasons
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.attention import ListFolded, NoteAttentions
from tilegraph.rewrites.attention.folded import REASON
from tilegraph.rewrites.normalise import NORMALISE

N = helper.make_node
SCORES, OUT = N("MatMul", ["q", "k"], ["s"], name="first"), N("MatMul", ["p", "v"], ["o"], name="last")
CONSTS = {
    "places": np.arange(16, dtype=np.int64)[:, None], "one_place": np.array([[3]], np.int64), "four": np.array([4]),
    "weight": np.float32(np.random.default_rng(0).standard_normal((8, 16))), "second": np.array([1]),
    "row": np.float32(np.zeros((1, 16))), "start": np.array([0]), "end": np.array([8]), "axis": np.array([1]),
    "row16": np.float32(np.ones((16, 8)) / 7), "keys": np.float32(np.eye(16, 8)), "middle": np.array([8]),
    "heads": np.float32([[1, 2], [3, 4]]), "far": np.array([16])}
SHAPES = {"q": [16, 8], "k": [8, 16], "v": [16, 8], "v8": [8, 8], "w8": [8, 8], "x": [16, 8], "expert": [16, 8],
          "q3": [2, 16, 8], "k3": [2, 8, 16], "v3": [2, 16, 8]}


def model(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    read = {name for node in nodes for name in node.input}
    made = helper.make_model(helper.make_graph(
        list(nodes), "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in SHAPES.items() if n in read],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in CONSTS.items() if n in read]),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


LISTED = {
    "scattered scores": ([SCORES, N("ScatterND", ["s", "one_place", "row"], ["t"], name="scatter"),
                          N("Softmax", ["t"], ["p"], axis=-1), OUT], "ScatterND scatter"),
    "scattered weights": ([SCORES, N("Softmax", ["s"], ["t"], axis=-1),
                           N("ScatterND", ["t", "one_place", "row"], ["p"], name="scatter"), OUT], "ScatterND scatter"),
    "pieces": ([SCORES, N("Softmax", ["s"], ["t"], axis=-1),
                N("Slice", ["t", "start", "end", "axis"], ["a"], name="left"),
                N("Slice", ["t", "middle", "far", "axis"], ["b"], name="right"),
                N("MatMul", ["a", "v8"], ["oa"]), N("MatMul", ["b", "w8"], ["ob"]), N("Mul", ["oa", "ob"], ["o"])],
               "also read by Slice"),
}


@pytest.mark.parametrize("name", list(LISTED))
def test_listed(name: str) -> None:
    nodes, reason = LISTED[name]
    found = reasons(model(nodes))
    assert found
    assert reason in found[0]


def test_heads_that_are_mixed() -> None:
    """Talking heads: scores of one head are sums of those of others."""
    nodes = [N("MatMul", ["q3", "k3"], ["s"], name="first"),
             N("Einsum", ["s", "heads"], ["m"], equation="hij,hg->gij", name="mix"),
             N("Softmax", ["m"], ["p"], axis=-1), N("MatMul", ["p", "v3"], ["o"], name="last")]
    (reason,) = reasons(model(nodes))
    assert reason.startswith("Einsum mix mixes the scores of several heads, which MatMul first makes")


def test_projections() -> None:
    nodes = [N("MatMul", ["x", "weight"], ["s"], name="first"), N("Softmax", ["s"], ["t"], axis=-1),
             N("ScatterND", ["t", "one_place", "row"], ["p"]), OUT]
    (reason,) = reasons(model(nodes))
    assert reason == ("MatMul first multiplies by a constant: the softmax is one of a projection, not of scores of "
                      "queries and keys")


UNLISTED = {
    "no second product": [SCORES, N("Softmax", ["s"], ["o"], axis=-1)],
    "chosen experts": [SCORES, N("Softmax", ["s"], ["t"], axis=-1), N("TopK", ["t", "four"], ["w", "i"], axis=-1),
                       N("ReduceSum", ["w", "axis"], ["z"]), N("Mul", ["z", "expert"], ["m"]),
                       N("MatMul", ["m", "k"], ["o"])],
}


@pytest.mark.parametrize("name", list(UNLISTED))
def test_unlisted(name: str) -> None:
    assert reasons(model(UNLISTED[name])) == []


def _folded(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """What is listed of attentions that constant folding takes away."""
    graph, context, noted = load(model(nodes)), PassContext(), NoteAttentions()
    Pipeline((noted, *NORMALISE, ListFolded(noted))).run(graph, context)
    return [f"{d.subject}: {d.reason}" for d in context.diagnostics.of("attention")]


def test_attentions_of_constants_are_listed() -> None:
    folded = [N("MatMul", ["row16", "weight"], ["s"], name="first"), N("Softmax", ["s"], ["p"], axis=-1),
              N("MatMul", ["p", "keys"], ["o"], name="last"), N("Add", ["o", "q"], ["out"])]
    (line,) = _folded(folded)
    assert line == f"last: {REASON}"
    assert _folded([N("MatMul", ["q", "weight"], ["s"], name="first"), *folded[1:]]) == []
