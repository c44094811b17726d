"""Operators that are attention by themselves: which are taken apart, what becomes of the others, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.attention.attn_support import fused
from tilegraph.io import load
from tilegraph.passes import PassContext
from tilegraph.rewrites.attention.operators import FlexBodies

F = TensorProto.FLOAT
FOUR = {"q": [1, 2, 16, 8], "k": [1, 2, 16, 8], "v": [1, 2, 16, 8]}
PREVIEW = "ai.onnx.preview"


def model(node: onnx.NodeProto, shapes: dict[str, list[Any]], outputs: tuple[str, ...] = ("o",), opset: int = 25,
          kind: int = F, dtypes: dict[str, int] | None = None, **constants: Any) -> onnx.ModelProto:
    dtypes = dtypes or {}
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, dtypes.get(n, kind), s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(o, kind, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1),
               helper.make_opsetid(PREVIEW, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def attention(inputs: tuple[str, ...] = ("q", "k", "v"), outputs: tuple[str, ...] = ("o",),
              **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Attention", inputs, outputs, name="att", **attributes)


def names(graph: ir.Model) -> list[str]:
    return [n.op_type.partition("_")[0] for n in graph.graph]


# -- ONNX's Attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attributes", "kind"), [
    ({}, "dense"), ({"is_causal": 1}, "positions"), ({"left_window_size": 3, "right_window_size": 0}, "positions"),
    ({"softcap": 5.0, "scale": 0.3}, "dense"), ({"left_window_size": 2, "right_window_size": 1}, "positions")])
def test_attention_is_one_kernel(attributes: dict[str, Any], kind: str) -> None:
    graph, decisions = fused(model(attention(**attributes), FOUR))
    assert [(d.taken, d.data["kind"], d.data["operator"]) for d in decisions] == [(True, kind, "att")]
    assert names(graph) == ["Attention"]
    assert graph.graph.outputs[0].name == "o"


def test_symbolic_sizes_and_packed_heads() -> None:
    shapes = {n: ["b", "s", 16] for n in ("q", "k", "v")}
    graph, decisions = fused(model(attention(is_causal=1, q_num_heads=4, kv_num_heads=4), shapes))
    assert [(d.taken, d.data["kind"]) for d in decisions] == [(True, "positions")]
    assert "Attention" in names(graph)


def test_float16_is_read_and_written_by_the_kernel() -> None:
    shapes = FOUR | {"pk": [1, 2, 5, 8], "pv": [1, 2, 5, 8], "m": [16, 21]}
    node = attention(("q", "k", "v", "m", "pk", "pv"), ("o", "nk", "nv"))
    graph, decisions = fused(model(node, shapes, ("o", "nk", "nv"), kind=TensorProto.FLOAT16))
    assert [d.taken for d in decisions] == [True]
    assert names(graph) == ["Attention"]
    assert {v.dtype for v in graph.graph.outputs} == {ir.DataType.FLOAT16}
    multi = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], num_heads=2, domain="com.microsoft")
    graph, decisions = fused(model(multi, {n: [1, 16, 16] for n in "qkv"}, kind=TensorProto.FLOAT16))
    assert names(graph) == ["Attention"], decisions


def test_past_and_present_are_kept() -> None:
    shapes = FOUR | {"pk": [1, 2, 5, 8], "pv": [1, 2, 5, 8]}
    node = attention(("q", "k", "v", "", "pk", "pv"), ("o", "nk", "nv"), is_causal=1)
    graph, decisions = fused(model(node, shapes, ("o", "nk", "nv")))
    assert [d.taken for d in decisions] == [True]
    assert names(graph) == ["Attention"]
    assert [o.name for o in graph.graph.outputs] == ["o", "nk", "nv"]


def test_a_row_without_a_key_is_guarded_only_where_there_may_be_one() -> None:
    def ops(graph: ir.Model) -> set[str]:
        (function,) = graph.functions.values()
        return {n.op_type for n in function}

    assert "ReduceMax" not in ops(fused(model(attention(is_causal=1), FOUR))[0])
    masked = model(attention(("q", "k", "v", "m")), FOUR | {"m": [16, 16]}, dtypes={"m": TensorProto.BOOL})
    assert "ReduceMax" in ops(fused(masked)[0])


@pytest.mark.parametrize(("node", "shapes", "outputs", "kind", "reason"), [
    (attention(outputs=("o", "", "", "s")), FOUR, ("o", "s"), F, "something reads the scores"),
    (attention(), FOUR, ("o",), TensorProto.BFLOAT16, "Q is bfloat16"),
    (attention(softmax_precision=11), FOUR, ("o",), F, "another precision"),
    (attention(q_num_heads=3, kv_num_heads=3), {n: [1, 16, 16] for n in ("q", "k", "v")}, ("o",), F,
     "3 heads do not divide the width 16"),
    (attention(), {n: [1, "h", 16, 8] for n in ("q", "k", "v")}, ("o",), F, "number of heads"),
    (attention(("q", "k", "v", "m")), FOUR | {"m": [16, 1]}, ("o",), F, "one column"),
])
def test_what_stays_whole(node: onnx.NodeProto, shapes: dict[str, list[Any]], outputs: tuple[str, ...], kind: int,
                          reason: str) -> None:
    graph, decisions = fused(model(node, shapes, outputs, kind=kind))
    assert names(graph) == ["Attention"]
    assert not any(n.domain == "ai.tilegraph" for n in graph.graph)
    assert [d.taken for d in decisions] == [False]
    assert reason in decisions[0].reason
    q = graph.graph.inputs[0]
    assert [use.node.op_type for use in q.uses()] == ["Attention"]  # nothing of the attempt is left


def test_an_operator_whose_attention_stays_is_whole_again() -> None:
    """ONNX Runtime's kernel is faster than the nodes that the operator stands for."""
    graph, decisions = fused(model(attention(), {"q": [1, 2, 1, 8], "k": [1, 2, 64, 8], "v": [1, 2, 64, 8]}), "auto")
    assert [(n.domain, n.op_type) for n in graph.graph] == [("", "Attention")]
    assert [d.taken for d in decisions] == [False]
    assert "ONNX Runtime keeps it" in decisions[0].reason


# -- FlexAttention ---------------------------------------------------------------------------------------------------


def _body(name: str, op: str, value: float) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node(op, ["x", "c"], ["y"])], name,
                             [helper.make_tensor_value_info("x", F, ["B", "H", "L", "S"])],
                             [helper.make_tensor_value_info("y", F, ["B", "H", "L", "S"])],
                             [numpy_helper.from_array(np.float32(value), "c")])


def test_flex_attention_always_becomes_standard_nodes() -> None:
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["o"], name="flex", domain=PREVIEW,
                            score_mod=_body("s", "Add", 0.5), prob_mod=_body("p", "Mul", 0.25))
    graph = load(model(node, FOUR, opset=26).SerializeToString())
    assert FlexBodies().run(graph, PassContext()).modified
    assert {n.domain for n in graph.graph} == {""}
    assert [n.op_type for n in graph.graph if n.op_type in ("Add", "Softmax")] == ["Add", "Softmax"]
    assert not FlexBodies().run(graph, PassContext()).modified
    left = [v.name for v in graph.graph.initializers.values()]
    assert len(left) == len(set(left))


def test_two_flex_attentions_with_the_same_body() -> None:
    nodes = [helper.make_node("FlexAttention", [a, "k", "v"], [b], domain=PREVIEW, score_mod=_body("s", "Add", 0.5))
             for a, b in (("q", "h"), ("h", "o"))]
    both = model(nodes[0], FOUR, opset=26)
    both.graph.node.append(nodes[1])
    graph, decisions = fused(both)
    assert not [d for d in decisions if d.taken]  # the pass under test has not run: the operator is not known
    graph = load(both.SerializeToString())
    assert FlexBodies().run(graph, PassContext()).modified
    assert [n.op_type for n in graph.graph].count("Softmax") == 2


def test_a_flex_attention_that_is_not_understood_is_refused() -> None:
    body = _body("s", "Add", 0.5)
    body.output.append(helper.make_tensor_value_info("y", F, None))
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["o"], name="flex", domain=PREVIEW, score_mod=body)
    graph = ir.from_proto(model(node, FOUR, opset=26))
    context = PassContext()
    assert not FlexBodies().run(graph, context).modified
    (decision,) = context.diagnostics.of("flex-attention")
    assert "score_mod has 1 inputs and 2 outputs" in decision.reason
