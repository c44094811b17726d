"""Index outputs and quantised outputs."""

from __future__ import annotations

import numpy as np
import pytest
from verify_pairs import Pairs

from tilegraph.verify import verify

F = np.float32
# Sums that differ in the last bits between columns 0 and 2, and clearly in column 1.
X = np.array([[1.0, 0.5, 1.0, 0.25], [0.5, 2.0, 0.5, 2.0]], F)
ARGMAX = ("g (float[n, 4] x) => (int64[n] i) { r = Relu(x)\n"
          "i = ArgMax<axis = 1, keepdims = 0, select_last_index = %d>(r) }")


def test_a_tie_in_argmax_is_accepted(make: Pairs) -> None:
    result = verify(make(ARGMAX % 0), make(ARGMAX % 1), inputs={"x": X})
    assert result.same
    assert "tie within" in result.outputs[0].notes[0]


def test_a_near_tie_within_rounding_is_accepted_and_a_clear_one_refused(make: Pairs) -> None:
    text = "g (float[n, 4] x) => (int64[n, 1] i) { s = Add(x, d)\n i = ArgMax<axis = 1>(s) }"
    first = make(text, d=np.zeros(4, F))
    ulp = np.array([0, 0, np.spacing(F(1)), 0], F)
    assert verify(first, make(text, d=ulp), inputs={"x": X[:1]}).outputs[0].same is True
    far = make(text, d=np.array([0, 0, 1e-3, 0], F))
    near = X[:1].copy()
    near[0, 2] = 1 - 5e-4
    result = verify(first, far, inputs={"x": near})
    assert not result.same
    assert "it selects values that differ by 0.0005" in result.outputs[0].notes[0]


@pytest.mark.parametrize("tail", [
    "i = Cast<to = 6>(j) }", "i = Unsqueeze(j, two) }", "i = Transpose<perm = [1, 0]>(j) }",
])
def test_ties_are_found_behind_views(make: Pairs, tail: str) -> None:
    kind, dims = ("int32", "n, m") if "Cast" in tail else ("int64", "n, m, k" if "Unsq" in tail else "m, n")
    text = (f"g (float[n, 4] x) => ({kind}[{dims}] i) {{ r = Relu(x)\n"
            "j = ArgMax<axis = 1, select_last_index = %d>(r)\n" + tail)
    assert verify(make(text % 0, two=np.array([2])), make(text % 1, two=np.array([2])), inputs={"x": X}).same


def test_topk_indices_of_ties_and_twice_the_same(make: Pairs) -> None:
    text = "g (float[n, 4] x) => (float[n, 3] v, int64[n, 3] i) { v, i = TopK<axis = 1>(x, k) }"
    a = make(text, k=np.array([3]))
    swapped = make("g (float[n, 4] x) => (float[n, 3] v, int64[n, 3] i) { v, j = TopK<axis = 1>(x, k)\n"
                   "i = GatherElements<axis = 1>(j, order) }", k=np.array([3]),
                   order=np.array([[1, 0, 2], [1, 0, 2]]))
    result = verify(a, swapped, inputs={"x": X})  # the first two tie in both rows
    assert result.same
    assert "tie within" in result.outputs[1].notes[0]
    twice = make("g (float[n, 4] x) => (float[n, 3] v, int64[n, 3] i) { v, j = TopK<axis = 1>(x, k)\n"
                 "i = GatherElements<axis = 1>(j, order) }", k=np.array([3]), order=np.array([[0, 0, 2], [0, 0, 2]]))
    result = verify(a, twice, inputs={"x": X})
    assert not result.same
    assert "an index occurs twice" in result.outputs[1].notes[0]


def test_an_index_out_of_range_is_refused(make: Pairs) -> None:
    a = make("g (float[n, 4] x) => (int64[n, 1] i) { i = ArgMax<axis = 1>(x) }")
    b = make("g (float[n, 4] x) => (int64[n, 1] i) { j = ArgMax<axis = 1>(x)\n i = Add(j, c) }", c=np.array(4))
    result = verify(a, b)
    assert not result.same
    assert "an index is outside [0, 4)" in result.outputs[0].notes[0]


BOXES = np.array([[[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7]]], F)


def test_boxes_of_equal_score_may_swap_and_others_may_not(make: Pairs) -> None:
    def nms(body: str) -> str:
        return ("g (float[1, 4, 4] boxes, float[1, 1, 4] scores) => (int64[m, 3] i) {"
                f"j = NonMaxSuppression(boxes, scores, most, iou)\n {body} }}")
    weights = {"most": np.array([2]), "iou": np.array([0.5], F), "order": np.array([1, 0])}
    a, b = make(nms("i = Identity(j)"), **weights), make(nms("i = Gather(j, order)"), **weights)
    tied = {"boxes": BOXES, "scores": np.array([[[0.2, 0.9, 0.9, 0.1]]], F)}
    assert verify(a, b, inputs=tied).same
    apart = {"boxes": BOXES, "scores": np.array([[[0.2, 0.9, 0.8, 0.1]]], F)}
    result = verify(a, b, inputs=apart)
    assert not result.same
    assert "selects scores that differ by 0.1" in result.outputs[0].notes[0]


QUANT = ("g (float[n, 4] x) => (uint8[n, 4] y) { s = Add(x, d)\n y = QuantizeLinear(s, scale, zero) }")
SCALE = {"scale": np.array(0.05, F), "zero": np.array(128, np.uint8)}


def test_quantised_outputs_may_be_one_step_off_and_are_counted(make: Pairs) -> None:
    a = make(QUANT, d=np.zeros(4, F), **SCALE)
    one = make(QUANT, d=np.array([0.05, 0, 0, 0], F), **SCALE)
    two = make(QUANT, d=np.array([0.1, 0, 0, 0], F), **SCALE)
    result = verify(a, one, inputs={"x": X})
    assert result.same
    assert result.outputs[0].off_by_one == 2
    result = verify(a, two, inputs={"x": X})
    assert not result.same
    assert result.outputs[0].max_abs == 2


def test_integers_that_are_not_quantised_are_exact(make: Pairs) -> None:
    text = "g (float[n, 4] x) => (uint8[n, 4] y) { s = Add(x, d)\n y = Cast<to = 2>(s) }"
    result = verify(make(text, d=np.zeros(4, F)), make(text, d=np.array([1, 0, 0, 0], F)), inputs={"x": X})
    assert not result.same
    assert result.outputs[0].off_by_one == 0
