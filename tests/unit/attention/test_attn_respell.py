"""Spellings that are changed where that leads to an attention, and that stay where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.attention.attn_support import fused

N = helper.make_node
SHAPES: dict[str, list[Any]] = {
    "q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "v": [1, 2, 16, 8], "v2": [1, 2, 16, 8], "vt": [1, 2, 8, 16],
    "kn": [1, 2, 16, 8], "rows": [1, 2, 16, 4, 1], "columns": [1, 2, 16, 1, 4], "row": [1, 2, 16, 4, 1],
    "qb": [1, 2, 3, 8, 4], "kb": [1, 2, 3, 4, 16], "kc": [1, 2, 8, 4], "vb": [1, 2, 3, 16, 4], "vc": [1, 2, 8, 4],
    "ma": [1, 1, 3, 8, 16], "factor": [2, 16, 1], "kn1": [1, 2, 16, 1],
    "q2": [16, 8], "k2": [16, 8], "k2t": [8, 16], "w2": [16, 8], "w2t": [8, 16], "mask": [16, 16], "row2": [16],
    "kn3": [1, 16, 8], "v3": [1, 16, 8], "k1": [1, 1, 8, 16], "v1": [1, 1, 16, 8], "q4": [1, 4, 16, 8]}
SCORES, SOFT = N("MatMul", ["q", "k"], ["s"], name="first"), N("Softmax", ["s"], ["p"], axis=-1)
CONSTS: dict[str, Any] = {
    "last": np.array([-1]), "four": np.array([-2]), "axis2": np.array([2]), "axis3": np.array([3]),
    "axis4": np.array([4]), "laid": np.array([1, 2, 16, 4, 4]), "flat": np.array([1, 2, 16, 16]),
    "half": np.array([0.5], np.float32), "third": np.array([0.3], np.float32), "zero": np.array([0]),
    "eight": np.array([8]), "far": np.array([1 << 40]), "four4": np.array([4])}


def model(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("o",)) -> onnx.ModelProto:
    read = {name for node in nodes for name in node.input}
    made = helper.make_model(helper.make_graph(
        list(nodes), "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in SHAPES.items()
         if n in read and not any(n in node.output for node in nodes)],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in CONSTS.items() if n in read]),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


MULTIPLIED = [N("Unsqueeze", ["q", "axis3"], ["q5"]), N("Unsqueeze", ["kn", "axis2"], ["k5"]),
              N("Mul", ["q5", "k5"], ["qk"]), N("ReduceSum", ["qk", "last"], ["s"], keepdims=0, name="first")]
WEIGHED = [N("Unsqueeze", ["p", "axis4"], ["p5"]), N("Unsqueeze", ["v", "axis2"], ["v5"]),
           N("Mul", ["v5", "p5"], ["pv"]), N("ReduceSum", ["pv", "four"], ["o"], keepdims=0, name="last")]
DIFFERENTIAL = [N("MatMul", ["p", "v"], ["o1"], name="one"), N("MatMul", ["p", "v2"], ["o2"], name="two"),
                N("Transpose", ["o1"], ["t1"], perm=[0, 2, 1, 3]), N("Transpose", ["o2"], ["t2"], perm=[0, 2, 1, 3]),
                N("Concat", ["t1", "t2"], ["o"], axis=-1)]
LAID = [N("Reshape", ["s", "laid"], ["s5"]), N("Add", ["s5", "rows"], ["x1"]), N("Add", ["columns", "x1"], ["x2"]),
        N("Reshape", ["x2", "flat"], ["x"]), N("Softmax", ["x"], ["p"], axis=-1)]
OUT = N("MatMul", ["p", "v"], ["o"], name="last")
MAPS = [SCORES, SOFT, N("MatMul", ["q", "vt"], ["s2"], name="other"), N("Softmax", ["s2"], ["p2"], axis=-1)]
DIFFERENCE = [N("Mul", ["factor", "p2"], ["less"]), N("Sub", ["p", "less"], ["d"]),
              N("MatMul", ["d", "v"], ["o"], name="last")]


def blocks(**changed: Any) -> list[onnx.NodeProto]:
    """Two blocks of keys, one of them shared by all rows of blocks."""
    given = {"factor": "half", "end": "eight", "equation": "bhlqd,bhkd->bhlqk", **changed}
    return [
        N("MatMul", ["qb", "kb"], ["sa0"]), N("Mul", ["sa0", "half"], ["sa1"]), N("Add", ["sa1", "ma"], ["sa"]),
        N("Einsum", ["qb", "kc"], ["sb0"], equation=given["equation"]), N("Mul", [given["factor"], "sb0"], ["sb"]),
        N("Concat", ["sb", "sa"], ["s"], axis=-1), N("Softmax", ["s"], ["p"], axis=-1),
        N("Slice", ["p", "zero", given["end"], "last"], ["pb"]), N("Slice", ["p", "eight", "far", "last"], ["pa"]),
        N("MatMul", ["pa", "vb"], ["oa"], name="a"),
        N("Einsum", ["pb", "vc"], ["ob"], equation="bhlqk,bhkd->bhlqd", name="b"),
        N("Add", ["oa", "ob"], ["o0"], name="total"), N("Mul", ["o0", "half"], ["o"])]


CHANGED = {
    "heads repeated by Concat": [
        N("Concat", ["k1", "k1"], ["k"], axis=1), N("Concat", ["v1", "v1"], ["v"], axis=1), SCORES, SOFT,
        N("MatMul", ["p", "v"], ["o"], name="last")],
    "groups repeated by Concat": [
        N("Concat", ["k", "k"], ["k4"], axis=1), N("Concat", ["v", "v"], ["v4"], axis=1),
        N("MatMul", ["q4", "k4"], ["s"], name="first"), SOFT, N("MatMul", ["p", "v4"], ["o"], name="last")],
    "blocks": blocks(),
    "weights on the right": [SCORES, SOFT, N("Transpose", ["p"], ["pt"], perm=[0, 1, 3, 2]),
                             N("MatMul", ["vt", "pt"], ["o"], name="last")],
    "weights on the right of Einsum": [SCORES, SOFT, N("Einsum", ["v", "p"], ["o"], equation="bhje,bhij->bihe")],
    "scores by Mul and ReduceSum": [*MULTIPLIED, SOFT, OUT],
    "both by Mul and ReduceSum": [*MULTIPLIED, SOFT, *WEIGHED[:-1],
                                  N("ReduceSum", ["pv", "four"], ["o"], keepdims=1, name="last")],
    "Gemm and MatMul": [N("Gemm", ["q2", "k2", "mask"], ["s"], transB=1, alpha=0.25, beta=2.0, name="first"), SOFT,
                        N("MatMul", ["p", "w2"], ["o"], name="last")],
    "two Gemms": [N("Gemm", ["k2t", "k2t", "row2"], ["s"], transA=1, name="first"), SOFT,
                  N("Gemm", ["p", "w2t", "k2"], ["o0"], transB=1, alpha=0.5, name="last"),
                  N("Mul", ["o0", "half"], ["o"])],
    "a Gemm that is an output": [N("Gemm", ["q2", "k2"], ["s"], transB=1, name="first"), SOFT,
                                 N("Gemm", ["p", "w2"], ["o"], name="last")],
    "Einsum of keys that heads share": [
        N("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        N("Einsum", ["qt", "kn3"], ["s"], equation="bihd,bjd->bhij", name="first"), SOFT,
        N("Einsum", ["p", "v3"], ["o"], equation="bhij,bje->bihe", name="last")],
    "Einsum with an ellipsis": [
        N("Einsum", ["q", "kn"], ["s"], equation="...id,...jd->...ij", name="first"), SOFT,
        N("Einsum", ["p", "v"], ["o"], equation="...ij,...jd", name="last")],
    "Einsum with an ellipsis in one operand": [
        N("Einsum", ["q", "k2"], ["s"], equation="...id,jd->...ij", name="first"), SOFT,
        N("Einsum", ["p", "w2"], ["o"], equation="...ij,je->i...e", name="last")],
    "two values": [SCORES, SOFT, *DIFFERENTIAL[:2], N("Sub", ["o1", "o2"], ["o"])],
    "two values, joined": [SCORES, SOFT, *DIFFERENTIAL, N("Mul", ["o", "half"], ["oo"])],
    "difference of two softmaxes": [*MAPS, *DIFFERENCE],
    "sum of two softmaxes": [*MAPS, N("Add", ["p", "p2"], ["d"]), DIFFERENCE[-1]],
    "biases of rows and columns": [SCORES, *LAID, OUT],
    "a bias of rows": [SCORES, N("Reshape", ["s", "laid"], ["s5"]), N("Add", ["s5", "row"], ["x1"]),
                       N("Reshape", ["x1", "flat"], ["x"]), N("Softmax", ["x"], ["p"], axis=-1), OUT],
}
RESULTS = {"two values, joined": ("oo",), "two values, one of them an output": ("o", "u")}


def spelled(name: str) -> onnx.ModelProto:
    return model(CHANGED[name], RESULTS.get(name, ("o",)))


@pytest.mark.parametrize("name", list(CHANGED))
def test_changed(name: str) -> None:
    graph, decisions = fused(spelled(name))
    count = 2 if "two softmaxes" in name else 1
    assert [d.taken for d in decisions] == [True] * count, [d.reason for d in decisions]
    ops = [n.op_type.partition("_")[0] for n in graph.graph]
    assert ops.count("Attention") == count
    assert not {"MatMul", "Einsum", "ReduceSum", "Softmax"} & set(ops)
    assert "repeated" not in name or ops == ["Attention"]
    if name == "two values, joined":
        assert not {"Split", "Transpose"} & set(ops)


STAY = {
    "a Gemm whose scores are read": [N("Gemm", ["q2", "k2"], ["s"], transB=1, name="first"), SOFT,
                                     N("Gemm", ["p", "w2"], ["o0"], name="last"), N("Gemm", ["s", "o0"], ["o"])],
    "Einsum that sums up twice": [N("Einsum", ["q", "kn"], ["s"], equation="bhid,bgjd->bij", name="first"),
                                  N("Softmax", ["s"], ["p"], axis=-1),
                                  N("Einsum", ["p", "v3"], ["o"], equation="...ij,...je->...ie", name="last")],
    "Einsum of a diagonal": [N("Einsum", ["q", "kn"], ["s"], equation="bhid,bhid->bhi", name="first"), SOFT,
                             N("Einsum", ["p", "v"], ["o"], equation="bhi,bhie->bhe", name="last")],
    "Gemms without a softmax": [N("Gemm", ["q2", "k2"], ["s"], transB=1, name="first"), N("Relu", ["s"], ["p"]),
                                N("Gemm", ["p", "w2"], ["o0"], name="last"), N("Mul", ["o0", "half"], ["o"])],
    "a softmax of columns between Gemms": [
        N("Gemm", ["q2", "k2"], ["s"], transB=1, name="first"), N("Softmax", ["s"], ["p"], axis=0),
        N("Gemm", ["p", "w2"], ["o0"], name="last"), N("Mul", ["o0", "half"], ["o"])],
    "a factor along the keys": [*MAPS, N("Mul", ["row2", "p2"], ["less"]), *DIFFERENCE[1:]],
    "a softmax and a bias": [*MAPS[:2], N("Add", ["p", "mask"], ["d"]), DIFFERENCE[-1]],
    "a difference that is read": [*MAPS, *DIFFERENCE[:2], N("MatMul", ["d", "v"], ["o0"], name="last"),
                                  N("ReduceSum", ["d", "last"], ["r"]), N("Mul", ["o0", "r"], ["o"])],
    "blocks with two scales": blocks(factor="third"),
    "blocks that overlap": blocks(end="four4"),
    "no softmax": [*MULTIPLIED, N("Relu", ["s"], ["p"]), OUT],
    "values made of the other product": [SCORES, SOFT, N("MatMul", ["p", "v"], ["o1"], name="one"),
                                         N("MatMul", ["p", "o1"], ["o2"], name="two"), N("Mul", ["o2", "half"], ["o"])],
    "two values, one of them an output": [SCORES, SOFT, N("MatMul", ["p", "v"], ["o"], name="one"),
                                          N("MatMul", ["p", "v2"], ["o2"], name="two"),
                                          N("Mul", ["o2", "half"], ["u"])],
    "sums along a dim that one operand repeats": [
        MULTIPLIED[0], N("Unsqueeze", ["kn1", "axis2"], ["k5"]), *MULTIPLIED[2:], SOFT, OUT],
    "weights that are read otherwise": [SCORES, SOFT, *DIFFERENTIAL[:2], N("ReduceSum", ["p", "last"], ["r"]),
                                        N("Sub", ["o1", "o2"], ["d"]), N("Mul", ["d", "r"], ["o"])],
    "a layout that something else reads": [SCORES, *LAID, N("ReduceSum", ["x1", "last"], ["r"], keepdims=0),
                                           N("MatMul", ["p", "v"], ["o0"], name="last"),
                                           N("ReduceSum", ["r", "last"], ["r2"]), N("Mul", ["o0", "r2"], ["o"])],
    "a sum of squares": [N("Mul", ["q", "q"], ["qq"]), N("ReduceSum", ["qq", "last"], ["s0"], name="first"),
                         N("Add", ["s0", "kn"], ["s"]), N("Softmax", ["s"], ["o"], axis=-1)],
}


@pytest.mark.parametrize("name", list(STAY))
def test_unchanged(name: str) -> None:
    before = model(STAY[name], RESULTS.get(name, ("o",)))
    graph, decisions = fused(before)
    assert not any(d.taken for d in decisions)
    assert sorted(n.op_type for n in graph.graph) == sorted(n.op_type for n in before.graph.node)


def test_what_only_another_spelling_shows_has_its_own_reason() -> None:
    _, decisions = fused(spelled("blocks"), offload="auto")
    assert not any(d.taken for d in decisions)
    (reason,) = [d.reason for d in decisions if d.subject == "total"]
    assert reason.startswith("in another spelling: ONNX Runtime keeps it")


def test_other_products_keep_their_spelling() -> None:
    """Beside an attention by Gemm: a Gemm, an Einsum and a sum of products that are none."""
    others = [N("Gemm", ["k2", "w2t", "mask"], ["g"], alpha=0.5, name="gemm"),
              N("Einsum", ["q", "kn3"], ["e"], equation="bhid,bjd->bhij", name="einsum"), *MULTIPLIED[:-1],
              N("ReduceSum", ["qk", "last"], ["r"], keepdims=0, name="sum")]
    graph, decisions = fused(model([*CHANGED["Gemm and MatMul"], *others], ("o", "g", "e", "r")))
    assert any(d.taken for d in decisions)
    named = {n.name: n.op_type for n in graph.graph}
    assert {"gemm": "Gemm", "einsum": "Einsum", "sum": "ReduceSum"}.items() <= named.items()
