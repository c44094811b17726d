"""What is recognised as attention, what becomes of the graph, and each refusal with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import builders
from tests.unit.attention.attn_support import fused, reasons
from tests.unit.attention.spellings import LAYOUTS, MASKS, SOFTMAXES, Spelling

N = helper.make_node


def graph(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("o",), kind: int = TensorProto.FLOAT,
          shapes: dict[str, list[object]] | None = None, **consts: object) -> onnx.ModelProto:
    shapes = shapes or {"q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "v": [1, 2, 16, 8]}
    model = helper.make_model(helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(o, kind, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()]),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


SCORES, SOFT = N("MatMul", ["q", "k"], ["s"]), N("Softmax", ["s"], ["p"], axis=-1)
OUT = N("MatMul", ["p", "v"], ["o"], name="last")


# -- recognised ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "mask"), list(product(LAYOUTS, ("none", "causal-inf"))))
def test_layouts_become_one_node(layout: str, mask: str) -> None:
    model, decisions = fused(Spelling(2, 3, 9, 9, 8, 8, layout=layout, mask=mask).model())
    assert [d.taken for d in decisions] == [True]
    assert [n.op_type.partition("_")[0] for n in model.graph] == ["Attention"]


@pytest.mark.parametrize(("mask", "softmax"), list(product(MASKS, SOFTMAXES)))
def test_masks_and_softmaxes_become_one_node(mask: str, softmax: str) -> None:
    model, decisions = fused(Spelling(mask=mask, softmax=softmax).model())
    assert [d.taken for d in decisions] == [True]
    assert [n.op_type.partition("_")[0] for n in model.graph] == ["Attention"]


@pytest.mark.parametrize("opset", [13, 14, 17, 18, 20])
def test_opsets(opset: int) -> None:
    for softmax in ("op", "spelled"):
        _, decisions = fused(Spelling(opset=opset, softmax=softmax).model())
        assert [d.taken for d in decisions] == [True]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "batched"])
def test_symbolic_sizes(layout: str) -> None:
    _, decisions = fused(Spelling(layout=layout, symbolic=True).model())
    assert [d.taken for d in decisions] == [True]


def test_equal_attentions_share_a_function() -> None:
    second = [N("MatMul", ["q", "k2"], ["s2"]), N("Softmax", ["s2"], ["p2"], axis=-1), N("MatMul", ["p2", "v"], ["o2"])]
    model, decisions = fused(graph([SCORES, SOFT, OUT, *second], ["o", "o2"], shapes={
        "q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "k2": [1, 2, 8, 16], "v": [1, 2, 16, 8]}))
    assert len([d for d in decisions if d.taken]) == 2
    assert len(model.functions) == 1


def test_views_that_others_read_stay_for_them() -> None:
    nodes = [N("Transpose", ["k0"], ["k"], perm=[0, 1, 3, 2]), SCORES, SOFT, OUT, N("Relu", ["k"], ["r"])]
    model, decisions = fused(graph(nodes, ["o", "r"], shapes={"q": [1, 2, 16, 8], "k0": [1, 2, 16, 8],
                                                             "v": [1, 2, 16, 8]}))
    assert [d.taken for d in decisions] == [True]
    assert sorted(n.op_type.partition("_")[0] for n in model.graph) == ["Attention", "Relu", "Transpose"]


def test_a_result_that_is_read_before_its_views_keeps_its_shape() -> None:
    nodes = [SCORES, SOFT, OUT, N("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3])]
    model, decisions = fused(graph(nodes, ["o", "t"]))
    assert [d.taken for d in decisions] == [True]
    assert [n.op_type.partition("_")[0] for n in model.graph] == ["Attention", "Transpose"]


def test_positions_from_constants_that_count() -> None:
    model, decisions = fused(Spelling(1, 2, 1100, 1100, 8, 8, mask="window").model())
    assert decisions[0].data["kind"] == "positions"
    assert 0 < decisions[0].data["density"] < 0.01
    assert not [n for n in model.graph if n.op_type == "Range"]


def test_counting_constants_that_no_attention_reads_come_back() -> None:
    nodes = [SCORES, SOFT, OUT, N("Mul", ["x", "count"], ["y"])]
    model, _ = fused(graph([*nodes, N("Cast", ["o"], ["x"], to=TensorProto.INT64)], ["y"],
                           count=np.arange(8)))
    assert "count" in model.graph.initializers
    assert not [n for n in model.graph if n.op_type in ("Range", "Reshape")]
    assert not [name for name in model.graph.initializers if name.startswith("count_")]


def test_positions_that_others_read_too() -> None:
    """Llama's mask and rotary angles are made of the same Range, and the angles of what the scores are made of."""
    model, decisions = fused(builders.build("mistral", size="small", dynamic=True))
    assert [d.data["kind"] for d in decisions] == ["mask+positions"]
    assert [n.op_type for n in model.graph].count("Range") == 1


# -- near misses -----------------------------------------------------------------------------------------------------


def test_nothing_without_a_softmax() -> None:
    _, decisions = fused(graph([SCORES, N("Relu", ["s"], ["p"]), OUT]))
    assert decisions == []


def test_softmax_over_queries() -> None:
    (reason,) = reasons(graph([SCORES, N("Softmax", ["s"], ["p"], axis=-2), OUT]))
    assert "not over the keys" in reason


@pytest.mark.parametrize(("value", "what"), [("s", "MatMul"), ("p", "Softmax")])
def test_scores_and_weights_that_are_outputs(value: str, what: str) -> None:
    (reason,) = reasons(graph([SCORES, SOFT, OUT], ["o", value]))
    assert what in reason
    assert "the graph's output" in reason


def test_weights_that_another_node_reads() -> None:
    (reason,) = reasons(graph([SCORES, SOFT, OUT, N("ReduceMean", ["p"], ["m"], name="mean")], ["o", "m"]))
    assert "also read by ReduceMean mean" in reason


def test_other_dtypes() -> None:
    (reason,) = reasons(graph([SCORES, SOFT, OUT], kind=TensorProto.DOUBLE))
    assert "float64" in reason


@pytest.mark.parametrize("size", [257, "d"])
def test_depths(size: object) -> None:
    (reason,) = reasons(graph([SCORES, SOFT, OUT], shapes={"q": [1, 2, 16, size], "k": [1, 2, size, 16],
                                                          "v": [1, 2, 16, 8]}))
    assert "depth of queries and keys" in reason
    _, decisions = fused(graph([SCORES, SOFT, OUT], shapes={"q": [1, 2, 16, 256], "k": [1, 2, 256, 16],
                                                           "v": [1, 2, 16, 8]}))
    assert decisions[0].taken


@pytest.mark.parametrize("before", ["ReduceMax", "ReduceMean"])
def test_scores_divided_by_a_reduction(before: str) -> None:
    nodes = [SCORES, N(before, ["s", "last"], ["m"]), N("Div", ["s", "m"], ["x"]),
             N("Softmax", ["x"], ["p"], axis=-1), OUT]
    (reason,) = reasons(graph(nodes, last=np.array([-1])))
    assert "reduction before the softmax" in reason


def test_a_sum_that_is_not_the_powers() -> None:
    nodes = [SCORES, N("ReduceMax", ["s", "last"], ["m"]), N("Sub", ["s", "m"], ["x"]), N("Exp", ["x"], ["e"]),
             N("ReduceSum", ["e", "last"], ["t0"]), N("Add", ["t0", "one"], ["t"]), N("Div", ["e", "t"], ["p"]), OUT]
    (reason,) = reasons(graph(nodes, last=np.array([-1]), one=np.float32(1)))
    assert "not a softmax" in reason


def test_weights_changed_after_the_softmax() -> None:
    (reason,) = reasons(graph([SCORES, N("Softmax", ["s"], ["p0"], axis=-1), N("Mul", ["p0", "f"], ["p"]), OUT],
                              f=np.linspace(0, 1, 16, dtype=np.float32)))
    assert "not a softmax" in reason


def test_scores_made_of_two_products() -> None:
    shapes: dict[str, list[object]] = {"q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "k2": [1, 2, 8, 16],
                                       "v": [1, 2, 16, 8]}
    nodes = [SCORES, N("MatMul", ["q", "k2"], ["s2"]), N("Add", ["s", "s2"], ["x"]),
             N("Softmax", ["x"], ["p"], axis=-1), OUT]
    model, decisions = fused(graph(nodes, shapes=shapes))
    # The other product stays outside and its result is a bias.
    assert [d.taken for d in decisions] == [True]
    assert sorted(n.op_type.partition("_")[0] for n in model.graph) == ["Attention", "MatMul"]


def test_keys_times_queries_and_a_softmax_over_rows() -> None:
    nodes = [SCORES, N("Softmax", ["s"], ["p0"], axis=-2), N("Transpose", ["p0"], ["p"], perm=[0, 1, 3, 2]), OUT]
    model, decisions = fused(graph(nodes, shapes={"q": [1, 2, 16, 8], "k": [1, 2, 8, 12], "v": [1, 2, 16, 8]}))
    assert [d.taken for d in decisions] == [True]
    assert [n.op_type.partition("_")[0] for n in model.graph] == ["Attention"]


def test_scores_read_by_another_index() -> None:
    backwards = N("Slice", ["s", "start", "end", "axes", "steps"], ["t"])
    nodes = [SCORES, backwards, N("Softmax", ["t"], ["p"], axis=-1), OUT]
    (reason,) = reasons(graph(nodes, start=np.array([15]), end=np.array([-17]), axes=np.array([2]),
                              steps=np.array([-1])))
    assert "order in which they are computed" in reason


def test_values_that_are_not_contiguous() -> None:
    nodes = [SCORES, SOFT, N("Mul", ["v0", "f"], ["v1"]), N("Transpose", ["v1"], ["v"], perm=[0, 1, 3, 2]), OUT]
    model, decisions = fused(graph(nodes, shapes={"q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "v0": [1, 2, 8, 16]},
                                   f=np.ones(16, np.float32)))
    # The transpose is left to ONNX Runtime; the attention reads its result.
    assert [d.taken for d in decisions] == [True]
    assert "Transpose" in [n.op_type for n in model.graph]


def test_what_onnx_runtime_does_as_fast_is_left_to_it() -> None:
    spelling = Spelling(1, 1, 1, 64, 64, 64)
    (reason,) = reasons(spelling.model(), offload="auto")
    assert "ONNX Runtime keeps it" in reason
    _, decisions = fused(Spelling(1, 12, 512, 512, 64, 64, mask="causal-inf").model(), offload="auto")
    assert decisions[0].taken
    model, decisions = fused(spelling.model(), offload="none")
    assert decisions == []
    assert len(model.functions) == 0


def test_query_counts_that_may_be_one() -> None:
    long = Spelling(1, 12, 512, 512, 64, 64, symbolic=True, mask="positions")
    assert [d.taken for d in fused(long.model(), offload="auto")[1]] == [True]
    decode = Spelling(1, 12, 1, 512, 64, 64, symbolic=True)
    assert [d.taken for d in fused(decode.model(), offload="auto")[1]] == [True]
    packing = Spelling(1, 12, 1, 512, 63, 64, symbolic=True)  # vectors do not divide such keys
    (reason,) = reasons(packing.model(), offload="auto")
    assert "may be 1 in a run" in reason


def test_few_queries_are_taken_where_keys_can_be_read_in_place() -> None:
    assert [d.taken for d in fused(Spelling(1, 12, 1, 512, 64, 64).model(), offload="auto")[1]] == [True]
    (reason,) = reasons(Spelling(1, 12, 1, 512, 63, 64).model(), offload="auto")
    assert "1 queries are too few" in reason


def test_of_several_products_the_nearest_makes_the_scores() -> None:
    """Relative positions: their scores are padded, cut and added to the others."""
    nodes = [SCORES, N("MatMul", ["q", "r"], ["s2"]), N("Pad", ["s2", "pads"], ["w"]),
             N("Slice", ["w", "start", "end", "axes"], ["c"]), N("Add", ["s", "c"], ["x"]),
             N("Softmax", ["x"], ["p"], axis=-1), OUT]
    model, decisions = fused(graph(nodes, shapes={"q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "r": [1, 2, 8, 16],
                                                  "v": [1, 2, 16, 8]},
                                   pads=np.array([0, 0, 0, 1, 0, 0, 0, 0]), start=np.array([0]), end=np.array([16]),
                                   axes=np.array([3])))
    assert [d.taken for d in decisions] == [True]
    assert [n.op_type for n in model.graph].count("MatMul") == 1


def test_operators_that_are_attention_are_listed() -> None:
    node = N("QAttention", ["q3", "k3", "v3"], ["o"], name="qa", num_heads=2, domain="com.microsoft")
    model = graph([node], shapes={n: [1, 16, 16] for n in ("q3", "k3", "v3")})
    (reason,) = reasons(model)
    assert "the operator QAttention" in reason
