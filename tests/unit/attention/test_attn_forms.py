"""Softmaxes over the keys in every form, and what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.attention.attn_support import fused, reasons

N = helper.make_node
SCORES = N("MatMul", ["q", "k"], ["s"])
OUT = N("MatMul", ["p", "v"], ["o"])
SUM = N("ReduceSum", ["e", "last"], ["t"])
RNG = np.random.default_rng(0)
CONSTS = {"last": np.array([-1]), "zero": np.float32(0), "one": np.float32(1), "tiny": np.float32(1e-9),
          "small": np.float32(1e-3), "low": np.float32(-np.inf), "medium": np.float32(-10),
          "other": RNG.random((16, 16)) < 0.7,
          "lowest": np.float32(np.finfo(np.float32).min), "keep": RNG.random((16, 16)) < 0.5,
          "signed": np.float32(RNG.standard_normal((16, 16)))}


def attention(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    shapes = {"q": [1, 2, 16, 8], "k": [1, 2, 8, 16], "v": [1, 2, 16, 8]}
    used = {name for node in nodes for name in node.input}
    model = helper.make_model(helper.make_graph(
        [SCORES, *nodes, OUT], "g", [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in CONSTS.items() if n in used]),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


SHIFTED = [N("ReduceMax", ["s", "last"], ["m"]), N("Sub", ["s", "m"], ["x"])]
POWERS = [*SHIFTED, N("Exp", ["x"], ["e"])]
SOFT = N("Softmax", ["s"], ["p0"], axis=-1)
MASK = N("Cast", ["keep"], ["mask"], to=TensorProto.FLOAT)
MASKED = [SOFT, MASK, N("Mul", ["p0", "mask"], ["e"]), SUM]
DIVIDED = N("Div", ["e", "t"], ["p"])
CHOSEN = [N("Where", ["keep", "p0", "zero"], ["e"]), SUM]
POSITIVE = N("Greater", ["t", "zero"], ["some"])

FORMS = {
    "no maximum": [N("Exp", ["s"], ["e"]), SUM, DIVIDED],
    "mean": [N("ReduceMean", ["s", "last"], ["m"]), N("Sub", ["s", "m"], ["x"]), N("Exp", ["x"], ["e"]), SUM, DIVIDED],
    "log of the softmax": [N("LogSoftmax", ["s"], ["x"], axis=-1), N("Exp", ["x"], ["p"])],
    "log of the sum": [N("ReduceLogSumExp", ["s", "last"], ["t"]), N("Sub", ["s", "t"], ["x"]), N("Exp", ["x"], ["p"])],
    "its parts": [*POWERS, SUM, N("Log", ["t"], ["l"]), N("Sub", ["x", "l"], ["y"]), N("Exp", ["y"], ["p"])],
    "a tiny number in the sum": [*POWERS, SUM, N("Add", ["t", "tiny"], ["u"]), N("Div", ["e", "u"], ["p"])],
    "masked": [*MASKED, DIVIDED],
    "chosen": [SOFT, N("Where", ["keep", "p0", "zero"], ["e"]), SUM, DIVIDED],
    "powers chosen": [*SHIFTED, N("Exp", ["x"], ["e0"]), N("Where", ["keep", "e0", "zero"], ["e"]), SUM, DIVIDED],
    "twice": [*POWERS, SUM, N("Div", ["e", "t"], ["p0"]), N("ReduceSum", ["p0", "last"], ["u"]),
              N("Div", ["p0", "u"], ["p"])],
    "masked, empty rows 0": [*MASKED, POSITIVE, N("Where", ["some", "t", "one"], ["u"]), N("Div", ["e", "u"], ["w"]),
                             N("Where", ["some", "w", "zero"], ["p"])],
    "masked twice by infinity": [N("Where", ["other", "s", "low"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                                 *CHOSEN, DIVIDED],
    "hidden keys 0": [N("Where", ["keep", "s", "low"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                      N("Where", ["keep", "p0", "zero"], ["p"])],
    "lowest keys 0": [N("Where", ["keep", "s", "lowest"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                      N("Where", ["keep", "p0", "zero"], ["p"])],
    "masked, empty sums 1": [*MASKED, N("Equal", ["t", "zero"], ["none"]), N("Where", ["none", "one", "t"], ["u"]),
                             N("Div", ["e", "u"], ["p"])],
}


@pytest.mark.parametrize("form", list(FORMS))
def test_a_softmax(form: str) -> None:
    model, decisions = fused(attention(FORMS[form]))
    assert [d.taken for d in decisions] == [True], [d.reason for d in decisions]
    assert [n.op_type.partition("_")[0] for n in model.graph if n.op_type != "Cast"] == ["Attention"]


NEARLY = {
    "masked twice": ([N("Add", ["s", "signed"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1), *CHOSEN, DIVIDED],
                     "before it"),
    "masked twice by numbers": ([N("Where", ["other", "s", "lowest"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                                 *CHOSEN, DIVIDED], "before it"),
    "low keys 0": ([N("Where", ["keep", "s", "medium"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                    N("Where", ["keep", "p0", "zero"], ["p"])], "not a softmax"),
    "other keys 0": ([N("Where", ["keep", "s", "low"], ["s1"]), N("Softmax", ["s1"], ["p0"], axis=-1),
                      N("Where", ["keep", "zero", "p0"], ["p"])], "not a softmax"),
    "not divided again": ([*MASKED[:2], N("Mul", ["p0", "mask"], ["p"])], "not a softmax"),
    "more in the sum": ([*POWERS, SUM, N("Add", ["t", "small"], ["u"]), N("Div", ["e", "u"], ["p"])], "not a softmax"),
    "a tiny number in a masked sum": ([*MASKED, N("Add", ["t", "tiny"], ["u"]), N("Div", ["e", "u"], ["p"])],
                                      "not a softmax"),
    "other powers": ([*POWERS, N("ReduceSum", ["x", "last"], ["t"]), DIVIDED], "not a softmax"),
    "signs": ([SOFT, N("Mul", ["p0", "signed"], ["e"]), SUM, DIVIDED], "may be negative"),
    "of another sum": ([N("Mul", ["s", "small"], ["y"]), N("ReduceLogSumExp", ["y", "last"], ["t"]),
                        N("Sub", ["s", "t"], ["x"]), N("Exp", ["x"], ["p"])], "not a softmax"),
    "a greatest power": ([N("Exp", ["s"], ["e"]), SUM, N("ReduceMax", ["e", "last"], ["m"]),
                          N("Add", ["t", "m"], ["u"]), N("Div", ["e", "u"], ["p"])], "not a softmax"),
}


@pytest.mark.parametrize("form", list(NEARLY))
def test_no_softmax(form: str) -> None:
    nodes, reason = NEARLY[form]
    assert reason in reasons(attention(nodes))[0]
