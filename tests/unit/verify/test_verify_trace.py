"""Where outputs come from, and ties."""

from __future__ import annotations

import numpy as np
import pytest
from verify_text import parse

from tilegraph.verify.trace import (
    IndexOrigin,
    has_quantised_arithmetic,
    index_origin,
    is_quantised,
    precision,
    random_ops,
    ties,
)

AXES = {"zero": np.array([0]), "one": np.array([1]), "scale": np.array(0.1, np.float32), "zp": np.array(3, np.uint8)}


@pytest.mark.parametrize(("body", "kind"), [
    ("y = ArgMax(x)", "arg"), ("i = ArgMin<axis = 1>(x)\n y = Cast<to = 6>(i)", "arg"),
    ("v, i = TopK(x, one)\n y = Squeeze(i, one)", "topk"), ("v, i = TopK(x, one)\n y = Cast<to = 7>(v)", None),
    ("i = ArgMax(x)\n y = Add(i, one)", None),
    ("i = ArgMax(x)\n s = Squeeze(i, zero)\n y = Transpose<perm = [0]>(s)", "arg"),
    ("i = ArgMax(x)\n t = Transpose<perm = [1, 0]>(i)\n s = Flatten(t)\n y = Identity(s)", None),
    ("y = Shape(x)", None),
])
def test_index_outputs(body: str, kind: str | None) -> None:
    model = parse("g (float[n, m] x) => (int64 y) { " + body + " }", **AXES)
    found = index_origin(model.graph.outputs[0])
    assert (found.kind if found else None) == kind
    assert found is None or found.data == "x"


@pytest.mark.parametrize(("body", "wanted"), [
    ("y = QuantizeLinear(x, scale, zp)", True),
    ("q = QuantizeLinear(x, scale, zp)\n r = Reshape(q, one)\n y = Concat<axis = 0>(r, r)", True),
    ("y, s, z = DynamicQuantizeLinear(x)", True),
    ("y = Cast<to = 2>(x)", False),
    ("q = QuantizeLinear(x, scale, zp)\n y = BitShift<direction = \"LEFT\">(q, q)", False),
])
def test_quantised_outputs(body: str, wanted: bool) -> None:
    model = parse("g (float[n, m] x) => (uint8 y) { " + body + " }", **AXES)
    assert is_quantised(model.graph.outputs[0]) is wanted


@pytest.mark.parametrize(("opset", "attributes", "digits"), [
    (18, "", "float64"), (21, "", "float32"), (21, ", stash_type = 1", "float32"),
    (21, ", stash_type = 11", "float64")])
def test_float64_rows_that_are_normalised_in_float32(opset: int, attributes: str, digits: str) -> None:
    model = parse(f"g (double[n, 4, m] x, double[4] s) => (double[n, 4, m] y) {{ "
                  f"y = GroupNormalization<num_groups = 4{attributes}>(x, s, s) }}", opset=opset)
    assert precision(model.graph.outputs[0]) == np.dtype(digits)


def test_quantised_arithmetic_and_random_ops() -> None:
    plain = parse("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    assert not has_quantised_arithmetic(plain)
    assert not random_ops(plain)
    assert has_quantised_arithmetic(parse("g (uint8[n, m] x) => (int32 y) { y = MatMulInteger(x, x) }"))
    for level, rounds in ((0, False), (1, False), (4, True)):
        assert has_quantised_arithmetic(parse(
            "g (float[n, 32] x, uint8[8, 1, 16] w, float[8] s) => (float y) { y = com.microsoft.MatMulNBits"
            f"<K = 32, N = 8, bits = 4, block_size = 32, accuracy_level = {level}>(x, w, s) }}")) is rounds
    assert random_ops(parse("g (float[n] x) => (float[n] y) { y = RandomNormalLike(x) }")) == ["RandomNormalLike"]
    drops = "g (float[n] x, bool t) => (float[n] y) { r = Constant<value_float = 0.5>()\n y = Dropout(x, r, t) }"
    assert random_ops(parse(drops)) == ["Dropout"]


def origin(kind: str, axis: int = 1, keepdims: bool = True,
           permutations: tuple[tuple[int, ...], ...] = ()) -> IndexOrigin:
    return IndexOrigin(kind, "x", "i", axis, keepdims, permutations)


DATA = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 0.0, np.nan]])


@pytest.mark.parametrize(("wanted", "given", "bound", "told"), [
    ([1, 0], [2, 1], 0.0, None), ([1, 0], [3, 0], 1.0, None), ([1, 0], [3, 0], 0.9, "differ by 1, more than 0.9"),
    ([1, 0], [4, 0], 1.0, "outside"), ([1, 0], [-1, 0], 1.0, "outside"), ([1, 3], [1, 3], 0.0, None),
    ([1, 3], [1, 0], 9.0, "differ by nan"), ([1, 0], [1, 0, 0], 1.0, "not that of an index"),
])
def test_argmax_ties(wanted: list[int], given: list[int], bound: float, told: str | None) -> None:
    why = ties(origin("arg", keepdims=False), np.array(wanted), np.array(given), DATA, bound)
    assert (why is None) if told is None else (why is not None and told in why)


def test_topk_through_a_transpose() -> None:
    chosen = np.array([[1, 2], [0, 1]])
    swapped = np.array([[2, 1], [1, 0]])
    moved = origin("topk", permutations=((1, 0),))
    assert ties(moved, chosen.T, swapped.T, DATA, 0.0) is None
    assert ties(moved, chosen.T, np.array([[1, 1], [0, 1]]).T, DATA, 9.0) == "an index occurs twice"


def test_boxes() -> None:
    scores = np.array([[[0.9, 0.9, 0.5]]])
    a, b = np.array([[0, 0, 0], [0, 0, 2]]), np.array([[0, 0, 1], [0, 0, 2]])
    assert ties(origin("nms"), a, b, scores, 0.0) is None
    assert "selected instead of" in (ties(origin("nms"), a, b[:1], scores, 0.0) or "")
    assert "out of range" in (ties(origin("nms"), a, b + np.array([0, 0, 1]), scores, 0.0) or "")
    assert "twice" in (ties(origin("nms"), a, np.array([[0, 0, 0], [0, 0, 0]]), scores, 9.0) or "")
    assert "another batch" in (ties(origin("nms"), a, a + np.array([0, 1, 0]), scores, 9.0) or "")
