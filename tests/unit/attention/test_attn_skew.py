"""Attention in skewed chunks: taken as Longformer's export spells it, left alone where an element is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models.builders.graph import Array
from models.builders.skewed import longformer_chunks
from tests.unit.attention.attn_support import fused
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.attention.find import is_product
from tilegraph.rewrites.attention.respell.skew.moves import Tracer, sources
from tilegraph.rewrites.attention.respell.skew.places import places
from tilegraph.rewrites.attention.respell.skew.proof import read
from tilegraph.rewrites.attention.respell.skew.stand_in import PRIMES, Untraceable, standing_in
from tilegraph.rewrites.attention.respell.skew.traced import (
    Traced,
    joined,
    leaf,
    padded,
    reshaped,
    taken,
    transposed,
)
from tilegraph.rewrites.normalise import NORMALISE, Shapes


def small(**sizes: Any) -> onnx.ModelProto:
    chosen: dict[str, Any] = {"batch": 2, "seq": 32, "hidden": 32, "heads": 4, "ffn": 48, "reach": 4, **sizes}
    return longformer_chunks(**chosen)


def why(model: onnx.ModelProto) -> str:
    """Why the second product is that of no attention; "" if it is."""
    graph = load(model)
    Pipeline(NORMALISE).run(graph, PassContext())
    node = [n for n in graph.graph if is_product(n) and n.op_type == "Einsum"][-1]
    try:
        read(node)
    except Untraceable as reason:
        return str(reason)
    return ""


@pytest.mark.parametrize("sizes", [{}, {"batch": 1}, {"batch": 1, "heads": 1, "seq": 16}, {"reach": 1, "seq": 6},
                                   {"batch": "batch"}])
def test_taken(sizes: dict[str, Any]) -> None:
    graph, decisions = fused(small(**sizes))
    assert [d.taken for d in decisions] == [True], [d.reason for d in decisions]
    assert decisions[0].data["density"] < 0.9  # inputs that give rows up do not count
    ops = [n.op_type.partition("_")[0] for n in graph.graph]
    assert ops.count("Attention") == 1
    assert not {"ScatterND", "Softmax", "Einsum"} & set(ops)


def test_the_band_that_is_proven() -> None:
    graph = load(small())
    Pipeline(NORMALISE).run(graph, PassContext())
    found = read([n for n in graph.graph if n.op_type == "Einsum"][-1])
    at = found.queries[:, :, None] - found.keys[:, None]
    assert found.lanes == (2, 4)
    assert (np.abs(at[found.visible]) <= 4).all()
    positions = np.arange(32)
    assert found.visible.sum() == (np.abs(positions[:, None] - positions) <= 4).sum()
    assert found.given_up is not None
    assert (found.given_up.table == found.queries).all()


def constants(model: onnx.ModelProto, change: Callable[[Array], Array | None], kind: str = "Constant") -> bool:
    """Changes the first constant of nodes of `kind` for which `change` gives another; whether there is one."""
    for node in model.graph.node:
        if node.op_type == kind:
            made = change(numpy_helper.to_array(node.attribute[0].t))
            if made is not None:
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(made))
                return True
    return False


def _node(model: onnx.ModelProto, op: str, place: int = 0) -> onnx.NodeProto:
    return [n for n in model.graph.node if n.op_type == op][place]


def _low(model: onnx.ModelProto) -> None:
    assert constants(model, lambda a: np.array([-1e4], np.float32) if a[0] == -np.inf else None, "ConstantOfShape")


def _twos(model: onnx.ModelProto) -> None:
    assert constants(model, lambda a: np.array([2], np.float32) if a[0] == 1 else None, "ConstantOfShape")


def _other_rows(model: onnx.ModelProto) -> None:
    """The lower piece is cut one row further up."""
    slices = [n for n in model.graph.node if n.op_type == "Slice"]
    values = {n.output[0]: n for n in model.graph.node if n.op_type == "Constant"}
    for node in slices:
        ends = [numpy_helper.to_array(values[v].attribute[0].t) for v in node.input[1:4]]
        if [int(e.reshape(-1)[0]) for e in ends] == [3, 7, 2]:
            for name, number in zip(node.input[1:3], (2, 6), strict=True):
                values[name].attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([number])))
            return
    raise AssertionError("no such Slice")


def _column_softmax(model: onnx.ModelProto) -> None:
    _node(model, "Softmax").attribute[0].i = 1


def _written_twice(model: onnx.ModelProto) -> None:
    assert constants(model, lambda a: np.minimum(a, 7) if a.size == 5 and a.min() == 4 and a.max() == 8 else None)


def _weights_left_out(model: onnx.ModelProto) -> None:
    """A number of the softmax's rows that no value meets: the weights' last column becomes 0."""
    node = _node(model, "Pad", -2)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0] * 7 + [-1]), "cut"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0] * 7 + [6]), "more"))
    source = node.input[0]
    place = list(model.graph.node).index(node)
    model.graph.node.insert(place, onnx.helper.make_node("Slice", [source, "start", "end", "last"], ["less"], "less"))
    for name, number in (("start", 0), ("end", -1), ("last", 3)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    node.input[0], node.input[1] = "less", "more"


STAY = {
    "a finite number for what is hidden": (_low, "finite number"),
    "ones that are twos": (_twos, "is a product"),
    "a piece of other rows": (_other_rows, "several"),
    "a softmax of columns": (_column_softmax, "no softmax of rows"),
    "an element that is written twice": (_written_twice, "twice"),
    "weights that meet no value": (_weights_left_out, "not read"),
}


@pytest.mark.parametrize("name", list(STAY))
def test_stays(name: str) -> None:
    change, reason = STAY[name]
    model = small()
    assert why(model) == ""
    change(model)
    assert reason in why(model)
    if name == "a piece of other rows":
        _, decisions = fused(model)
        assert [d.taken for d in decisions] == [False]
        assert "followed element by element" in decisions[0].reason
        assert reason in decisions[0].reason


def elements(x: Traced) -> Array:
    """Every element's number, lanes written out."""
    total = np.broadcast_to(x.ids, x.plain).astype(np.int64)
    for axis, step in x.steps.items():
        total = total + step * np.arange(x.shape[axis]).reshape([-1 if k == axis else 1 for k in range(x.rank)])
    return total


def test_lanes_are_what_the_elements_are() -> None:
    x = leaf((6, 4, 5))
    want = np.arange(120).reshape(6, 4, 5)
    assert (elements(x) == want).all()
    x, want = reshaped(x, (2, 3, 20)), want.reshape(2, 3, 20)
    x, want = transposed(x, (0, 2, 1)), want.transpose(0, 2, 1)
    assert set(x.steps) == {0, 2}
    assert (elements(x) == want).all()
    with pytest.raises(Untraceable, match="joins batch or heads"):
        reshaped(x, (2, 60))


def test_tables_are_what_onnx_computes() -> None:
    """ScatterND of whole slices between lanes, Split, Pad, Where, Concat and Gather, against ONNX's own evaluator."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[3,6,4] x) => (float[3,2,4,5] y)
    <int64[1] two = {2}, int64[6] pads = {0, 0, 1, 0, 0, 0}, int64[2,1] rows = {4, 1}, int64[2] ends = {-1, 0},
     bool[1,5] kept = {1, 1, 0, 1, 1}, float low = {-1000.0}, int64[4] four = {3, 2, 4, 5}, int64[1] zero = {0}> {
        a, b, c = Split <axis = 1, num_outputs = 3> (x)
        t = Transpose <perm = [1, 0, 2]> (x)
        ct = Transpose <perm = [1, 0, 2]> (c)
        s = ScatterND (t, rows, ct)
        u = Transpose <perm = [1, 0, 2]> (s)
        e = Gather <axis = 1> (u, ends)
        j = Concat <axis = 1> (a, e, b, c)
        p = Pad (j, pads)
        w = Where (kept, p, low)
        y = Reshape (w, four)
    }"""
    model = onnx.parser.parse_model(text)
    model = onnx.shape_inference.infer_shapes(model)
    x = np.arange(72, dtype=np.float32).reshape(3, 6, 4)
    want = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    graph = load(model).graph
    assert sources(graph.outputs[0]) == [graph.inputs[0]]
    table = Tracer(graph.inputs[0]).trace(graph.outputs[0])
    assert set(table.steps) == {0}
    numbers = np.broadcast_to(table.numbers, want.shape)
    assert (np.where(np.broadcast_to(table.ids, table.plain) < 0, numbers, elements(table)) == want).all()


def test_what_depends_on_a_symbol_is_not_cut() -> None:
    prime = PRIMES[0]
    with standing_in("batch", prime):
        x = leaf((4 * prime, 6, 2 * prime))
        for change in (lambda: taken(x, 0, np.arange(4)), lambda: taken(x, 2, np.arange(4)),
                       lambda: padded(x, (0, 0, 1), (0, 0, 0), 0.0), lambda: joined([x, x], 2)):
            with pytest.raises(Untraceable, match="batch or heads"):
                change()
        assert joined([x, x], 1).shape == (4 * prime, 12, 2 * prime)


def test_places_through_lanes() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (int64[5,3,4] y)
    <int64[1] five = {5}, int64[3] b = {5, 1, 1}, int64[1] by = {7},
     int64[3,1] rows = {0, 2, 9}, int64[4] columns = {3, 2, 1, 0}> {
        n = ConstantOfShape <value = int64[1] {1}> (five)
        z = NonZero (n)
        zt = Transpose <perm = [1, 0]> (z)
        zb = Reshape (zt, b)
        m = Mul (zb, by)
        p = Add (m, rows)
        y = Sub (p, columns)
    }"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    want = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.zeros(1, np.float32)})[0]
    graph = load(model)
    Pipeline((Shapes(),)).run(graph, PassContext())
    found = places(graph.graph.outputs[0], frozenset({0}))
    assert found.first.shape[0] == 1
    got = found.first + found.growth[0] * np.arange(5).reshape(5, 1, 1)
    assert (got == want).all()
