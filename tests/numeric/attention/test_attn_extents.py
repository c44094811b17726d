"""Masks cut from tables, and shapes that are read off scores: right where a model is valid, an error elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import tilegraph
from tests.unit.attention.attn_support import fused, reasons
from tilegraph.compiler import optimize
from tilegraph.passes.invariants import check_model

N = helper.make_node
SIZE = 12  # of the table


def model(nodes: list[onnx.NodeProto], **constants: Any) -> onnx.ModelProto:
    shapes: dict[str, list[Any]] = {"q": ["b", 2, "s", 8], "k": ["b", 2, 8, "s"], "v": ["b", 2, "s", 8]}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()],
                              [helper.make_tensor_value_info("o", 1, None)],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def cut(rows: str = "n", columns: str = "n") -> onnx.ModelProto:
    """GPT-2 as TorchScript writes it: a triangle of bools, of which the first `s` rows and columns are taken."""
    nodes = [N("MatMul", ["q", "k"], ["x"]), N("Shape", ["q"], ["d"]), N("Gather", ["d", "two"], ["n"], axis=0),
             N("Slice", ["table", "zero", rows, "two"], ["t"]), N("Slice", ["t", "zero", columns, "three"], ["m"]),
             N("Where", ["m", "x", "low"], ["y"]), N("Softmax", ["y"], ["p"], axis=-1),
             N("MatMul", ["p", "v"], ["o"], name="last")]
    return model(nodes, two=np.array([2]), three=np.array([3]), zero=np.array([0]), low=np.float32(-10000),
                 all=np.array([SIZE]), table=np.tril(np.ones((1, 1, SIZE, SIZE), bool)))


def expanded() -> onnx.ModelProto:
    """DistilBERT: the mask is expanded to the shape of the scores."""
    nodes = [N("MatMul", ["q", "k"], ["x"]), N("Shape", ["x"], ["d"]), N("Shape", ["q"], ["dq"]),
             N("Gather", ["dq", "two"], ["n"], axis=0), N("ConstantOfShape", ["n"], ["zeros"]),
             N("Greater", ["zeros", "half"], ["row"]), N("Expand", ["row", "d"], ["m"]),
             N("Where", ["m", "low", "x"], ["y"]), N("Softmax", ["y"], ["p"], axis=-1),
             N("MatMul", ["p", "v"], ["o"], name="last")]
    return model(nodes, two=np.array([2]), half=np.float32(0.5), low=np.float32(-10000))


def named(summed: bool = False) -> onnx.ModelProto:
    """A mask of which only its own names are known; `summed`: added to one of the keys' length before the scores, as
    decoders add padding of the total length to what past and new keys say, and before there are queries."""
    proto = model([*([N("Add", ["w", "m"], ["both"]), N("Tanh", ["q"], ["h"])] if summed else []),
                   N("MatMul", ["h" if summed else "q", "k"], ["x"]),
                   N("Add", ["x", "both" if summed else "m"], ["y"]), N("Softmax", ["y"], ["p"], axis=-1),
                   N("MatMul", ["p", "v"], ["o"], name="last")])
    proto.graph.input.append(helper.make_tensor_value_info("m", 1, ["mb", 1, 1, "t"]))
    if summed:
        proto.graph.input.append(helper.make_tensor_value_info("w", 1, [1, 1, 1, "s"]))
    return proto


def feeds(length: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in
            (("q", (2, 2, length, 8)), ("k", (2, 2, 8, length)), ("v", (2, 2, length, 8)))}


def served(proto: onnx.ModelProto, folder: Path) -> ort.InferenceSession:
    made = optimize(proto.SerializeToString(), offload="all")
    assert [a["taken"] for a in made.summary.attentions] == [True]
    made.save(folder / "m")
    tilegraph.register()
    return ort.InferenceSession(str(folder / "m" / "model.onnx"),
                                providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])


@pytest.mark.parametrize("spelling", [cut, expanded])
def test_runs_that_are_valid(spelling: Any, tmp_path: Path) -> None:
    proto = spelling()
    original = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session = served(proto, tmp_path)
    for length in (1, 5, SIZE):
        want, got = (s.run(None, feeds(length))[0] for s in (original, session))
        assert np.std(want) > 1e-3
        assert np.abs(got - want).max() <= 2e-6 * max(1.0, float(np.abs(want).max()))


def test_a_run_beyond_the_table_is_an_error(tmp_path: Path) -> None:
    """In ONNX Runtime too: the mask cannot be broadcast."""
    proto = cut()
    session = served(proto, tmp_path)
    original = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for one in (original, session):
        with pytest.raises(Exception, match=str(SIZE)):
            one.run(None, feeds(SIZE + 1))


def test_a_mask_of_another_length_is_not_taken_for_it() -> None:
    (reason,) = reasons(cut(columns="all"))
    assert "not equal for certain" in reason


def test_shapes_that_others_read_come_from_the_operands() -> None:
    graph, decisions = fused(expanded())
    assert [d.taken for d in decisions] == [True]
    assert "MatMul" not in [n.op_type for n in graph.graph]


@pytest.mark.parametrize("summed", [False, True])
def test_masks_with_names_of_their_own(summed: bool, tmp_path: Path) -> None:
    proto = named(summed)
    original = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session = served(proto, tmp_path)
    rng = np.random.default_rng(3)
    row = {"w": rng.standard_normal((1, 1, 1, 7)).astype(np.float32)} if summed else {}
    for shape in ((2, 1, 1, 7), (1, 1, 1, 7), (2, 1, 1, 1), (1, 1, 1, 1)):
        given = feeds(7) | row | {"m": rng.standard_normal(shape).astype(np.float32)}
        want, got = (s.run(None, given)[0] for s in (original, session))
        assert np.abs(got - want).max() <= 2e-6 * max(1.0, float(np.abs(want).max()))
    given = feeds(7) | row | {"m": rng.standard_normal((2, 1, 1, 6)).astype(np.float32)}
    for one in (original, session):
        with pytest.raises(Exception, match=r"6 by 7|7 by 6|m_expand"):
            one.run(None, given)


def test_sizes_that_come_after_the_mask_keep_the_order() -> None:
    """Of an attention that is not taken in the end, too: its weights are read elsewhere."""
    proto = named(summed=True)
    proto.graph.output.append(helper.make_tensor_value_info("p", 1, None))
    graph, decisions = fused(proto)
    assert "Expand" in [n.op_type for n in graph.graph]
    assert [d.taken for d in decisions] == [False]
    check_model(graph)


def test_a_mask_of_a_constant_length_needs_that_length() -> None:
    proto = named()
    proto.graph.input[-1].CopyFrom(helper.make_tensor_value_info("m", 1, [1, 1, 1, 6]))
    (reason,) = reasons(proto)
    assert "not equal for certain" in reason


def test_shapes_that_are_read_in_part_and_off_einsum() -> None:
    proto = model([N("Einsum", ["q", "k"], ["x"], equation="bhid,bhdj->bhij"), N("Shape", ["x"], ["d"], start=2),
                   N("ConstantOfShape", ["d"], ["m"]), N("Add", ["x", "m"], ["y"]), N("Softmax", ["y"], ["p"], axis=-1),
                   N("MatMul", ["p", "v"], ["o"], name="last")])
    proto.opset_import[0].version = 17
    graph, decisions = fused(proto)
    assert [d.taken for d in decisions] == [True]
    assert "Einsum" not in [n.op_type for n in graph.graph]
