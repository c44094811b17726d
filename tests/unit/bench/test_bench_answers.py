"""Which answers of a peer count as the original's."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilegraph.bench.answers import difference, quantised

RNG = np.random.default_rng(0)
WANTED = RNG.standard_normal((8, 16)).astype(np.float32)


def test_another_order_of_summation_is_right_and_bfloat16_is_wrong() -> None:
    error, problem = difference([WANTED * np.float32(1 + 1e-6)], [WANTED])
    assert problem == ""
    assert 0 < error < 2e-6
    left = RNG.standard_normal((64, 512)).astype(ml_dtypes.bfloat16)
    weight = RNG.standard_normal((512, 64)).astype(np.float32)
    exact = left.astype(np.float32) @ weight
    low = left.astype(np.float32) @ weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    error, problem = difference([low], [exact])
    assert "0.001 is allowed" in problem
    assert error > 1e-3


def test_quantised_models_have_a_wider_bound_that_still_refuses() -> None:
    close, far = WANTED + 0.05 * np.abs(WANTED).max(), WANTED + 0.2 * np.abs(WANTED).max()
    assert difference([close], [WANTED])[1]
    assert difference([close], [WANTED], quantised=True)[1] == ""
    assert difference([far], [WANTED], quantised=True)[1]


@pytest.mark.parametrize(("given", "wanted", "part"), [
    ([WANTED, WANTED], [WANTED], "2 outputs, the original has 1"),
    ([WANTED[:4]], [WANTED], r"shape \[4, 16\]"),
    ([np.array([1.0, np.nan])], [np.array([1.0, 2.0])], "NaN or infinity"),
    ([np.array([1.0, np.inf])], [np.array([1.0, -np.inf])], "NaN or infinity"),
    ([np.array([1, 2, 4])], [np.array([1, 2, 3])], r"output 0 \(int64\) differs in 1 of 3"),
    ([np.array([True])], [np.array([False])], "differs in 1 of 1"),
    ([np.zeros(3, np.float32) + 1e-9], [np.zeros(3, np.float32)], "away"),
])
def test_wrong_answers_say_what_is_wrong(given: list[np.ndarray], wanted: list[np.ndarray], part: str) -> None:
    import re

    assert re.search(part, difference(given, wanted)[1])


def test_infinities_and_nan_in_the_same_places_are_right() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3.0])
    assert difference([values.copy()], [values]) == (0.0, "")


def test_quantised_arithmetic_is_found_in_branches_too(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        node = helper.make_node(op, ["x", "s", "z"], ["o"])
        return helper.make_graph([node], "b", [], [helper.make_tensor_value_info("o", TensorProto.UINT8, None)])

    value = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    for op, expected in (("QuantizeLinear", True), ("Where", False)):
        node = helper.make_node("If", ["c"], ["y"], then_branch=branch(op), else_branch=branch("Where"))
        graph = helper.make_graph([node], "g", [value], [])
        onnx.save(helper.make_model(graph), tmp_path / f"{op}.onnx")
        assert quantised(tmp_path / f"{op}.onnx") is expected
