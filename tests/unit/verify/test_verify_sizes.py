"""Sizes of symbolic dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from verify_text import parse

from tilegraph.errors import UsageError
from tilegraph.verify.sizes import Sizes

F = np.float32


def sizes(text: str, dims: dict[str, int | str] | None = None, **weights: np.ndarray[Any, Any]) -> Sizes:
    return Sizes(list(parse(text, **weights).graph.inputs), dims)


def shapes(text: str, sample: int = 1, place: int = 0, **weights: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
    found = sizes(text, **weights)
    binding = found.bindings(0, sample)[place]
    return [found.shape(name, binding) for name in found._shapes]


def test_one_name_has_one_value() -> None:
    a, b = shapes("g (float[batch, seq, 8] a, int64[batch, seq] b) => (float y) { y = Relu(a) }")
    assert a == (2, 24, 8)
    assert b == (2, 24)


def test_past_and_total_lengths_add_up() -> None:
    model = parse("g (int64[b, seq] ids, int64[b, total_seq] mask, float[b, 2, past_len, 4] k, int64[b, m] m)"
                  " => (float y) { y = Relu(k) }")
    model.graph.inputs[3].shape = ir.Shape(["b", "past_len + seq"])
    made = Sizes(list(model.graph.inputs))
    binding = made.bindings(0, 1)[0]
    ids, mask, k, m = (made.shape(v.name or "", binding) for v in model.graph.inputs)
    assert mask[1] == ids[1] + k[2] == m[1]


@pytest.mark.parametrize(("text", "weight", "wanted"), [
    ("g (float[n, c, h, w] x) => (float y) { y = Conv<group = 2>(x, W) }", (4, 3, 3, 3), 6),
    ("g (float[n, c] x) => (float y) { y = MatMul(x, W) }", (5, 7), 5),
    ("g (float[n, c] x) => (float y) { y = Gemm<transB = 1>(x, W) }", (5, 7), 7),
    ("g (float[n, c] x) => (float y) { z = Mul(x, x)\n y = LayerNormalization(z, W) }", (9,), 9),
])
def test_weights_pin_extents(text: str, weight: tuple[int, ...], wanted: int) -> None:
    for place in (0, 5):
        assert shapes(text, place=place, W=np.zeros(weight, F))[0][1] == wanted


def test_unnamed_axes_are_independent_but_the_first_is_the_batch() -> None:
    model = parse("g (float[n, m] a, float[2, n, 8] state, float[n, m] b) => (float y) { y = Relu(a) }")
    for value, shape in zip(model.graph.inputs, ([None, -1], [2, None, 8], ["?", "?"]), strict=True):
        value.shape = ir.Shape(shape)
    made = Sizes(list(model.graph.inputs))
    binding = made.bindings(0, 1)[0]
    assert made.shape("a", binding)[0] == made.shape("state", binding)[1] == made.shape("b", binding)[0] == 2
    assert {"a#1", "b#1", "#batch"} == set(binding)


def test_fixed_dims_win_and_the_place_form_works() -> None:
    text = "g (float[n, s] x) => (float[n, s] y) { y = Relu(x) }"
    for place in range(4):
        binding = sizes(text, {"n": 7}).bindings(0, 0)[place]
        assert binding["n"] == 7
    found = sizes(text, {"x[1]": 5})
    assert found.shape("x", found.bindings(0, 0)[0]) == (1, 5)


def test_what_the_caller_says_of_a_dim_holds_in_every_sample() -> None:
    text = ("g (int64[b, n] ids, int64[b, m] mask, float[b, 2, past, 4] k, float[b, 3, height, 8] x) => (float y)"
            " { y = Relu(k) }")
    found = sizes(text, {"m": "past+n", "height": "32*h"})
    for sample in range(4):
        for binding in found.bindings(0, sample):
            ids, mask, k, x = (found.shape(name, binding) for name in ("ids", "mask", "k", "x"))
            assert mask[1] == ids[1] + k[2]
            assert x[2] % 32 == 0
            assert 32 <= x[2] <= 640  # sizes of an image, not 32 times those
    assert "m" not in found.axes
    with pytest.raises(UsageError, match="no input has a symbolic dim of that name"):
        sizes(text, {"total": "past+n"})


def test_all_samples_have_as_many_candidates_in_the_same_places() -> None:
    found = sizes("g (float[n, s] x) => (float[n, s] y) { y = Relu(x) }")
    lists = [found.bindings(0, s) for s in range(5)]
    assert len({len(candidates) for candidates in lists}) == 1
    # Beyond the sample's own sizes only the batch depends on the sample.
    assert [b["s"] for b in lists[0][2:]] == [b["s"] for b in lists[2][2:]]
