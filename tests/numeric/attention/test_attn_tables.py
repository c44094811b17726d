"""Tables of what blocks of masks hold, which heads share."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.numeric.attention.attn_runner import check_fences, compile_attention, run
from tests.numeric.codegen.runner import Array

QUERIES, KEYS, DEPTH = 75, 140, 16  # whole blocks and pieces of them


def _model(batch: int, heads: int, shape: list[int], bias: Array) -> onnx.ModelProto:
    """x = Where(visible, q k' + bias, -inf); `shape` is that of the input `visible`."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, heads, size, DEPTH])
              for n, size in (("q", QUERIES), ("k", KEYS), ("v", KEYS))]
    inputs.append(helper.make_tensor_value_info("visible", TensorProto.BOOL, shape))
    nodes = [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["q", "kt"], ["s"]), helper.make_node("Add", ["s", "bias"], ["biased"]),
             helper.make_node("Where", ["visible", "biased", "low"], ["x"]),
             helper.make_node("Softmax", ["x"], ["w"], axis=-1), helper.make_node("MatMul", ["w", "v"], ["out"])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(
        "out", TensorProto.FLOAT, [batch, heads, QUERIES, DEPTH])], [
            numpy_helper.from_array(bias, "bias"), numpy_helper.from_array(np.array(-np.inf, np.float32), "low")])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def _answer(feeds: dict[str, Array], bias: Array) -> Array:
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    x = np.where(feeds["visible"], q @ k.swapaxes(2, 3) + bias, -np.inf)
    w = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(w / w.sum(-1, keepdims=True) @ v)


def test_heads_share_a_table_of_several_masks() -> None:
    rng = np.random.default_rng(3)
    bias = np.zeros((1, 1, QUERIES, KEYS), np.float32)
    bias[..., 64:128] = np.finfo(np.float32).min  # a block that is hidden by a number
    model = _model(2, 3, [2, 1, QUERIES, KEYS], bias)
    compiled, space, graph = compile_attention(model)
    assert [load.dtype for load in space.tables] == ["bool", "float32"]
    assert [v.extent for v in space.table_batch] == [2]
    feeds = {n: rng.standard_normal((2, 3, size, DEPTH), dtype=np.float32)
             for n, size in (("q", QUERIES), ("k", KEYS), ("v", KEYS))}
    # Batches hide other blocks, and the second one all keys but the last of some queries.
    feeds["visible"] = np.zeros((2, 1, QUERIES, KEYS), bool)
    feeds["visible"][0, 0, :, :70] = True
    feeds["visible"][1, 0, :64, 130:] = True
    feeds["visible"][1, 0, 64:, -1] = True
    want = _answer(feeds, bias)
    for tasks in (1, 5):
        assert np.abs(run(compiled, graph, feeds, tasks=tasks) - want).max() < 4e-6
    check_fences(compiled, graph, feeds, tasks=2)


@pytest.mark.parametrize(("heads", "shape"), [(1, [1, 1, QUERIES, KEYS]), (2, [1, 2, QUERIES, KEYS]),
                                              (2, [1, 1, 1, KEYS])])
def test_masks_that_are_read_once_need_no_table(heads: int, shape: list[int]) -> None:
    from tests.unit.attention.attn_support import fused
    from tilegraph.ops.attention import lower_attention, plan_attention

    graph, _ = fused(_model(1, heads, shape, np.zeros((1, 1, 1, KEYS), np.float32)))
    (call,) = [n for n in graph.graph if n.domain == "ai.tilegraph"]
    function = graph.functions[call.op_identifier()]
    space = plan_attention(lower_attention(list(function), list(function.outputs), function.opset_imports))
    assert space.tables == ()
    assert space.table == 0
