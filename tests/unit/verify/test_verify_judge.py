"""ONNX Runtime's own error, of which the bound of a float output is made: two draws, and more where that decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from tilegraph.verify.judge import Judge, Sample
from tilegraph.verify.ladder import EXPECTED, ORT_DOUBLE

EXACT = np.array([1.0, -2.0, 3.0])
MODEL = ir.from_proto(onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 20]> g (float[3] x) => (float[3] y) { y = Sin(x) }'))


def same(error: float, drift: float | None, own: float = 1e-4) -> bool:
    """Whether an answer that errs by `error` is the same, where ORT errs by `own` and with optimizations by `drift`."""
    def off(by: float) -> np.ndarray:
        return (EXACT + np.array([by, 0.0, 0.0])).astype(np.float32)

    sample = Sample({}, "x=3", [off(own)], optimized_by_ort=None if drift is None else [off(drift)],
                    double=("ORT in double", [EXACT]))
    judge = Judge(MODEL, Path("g.onnx"), [sample], None, None, 1, False, {}, 0.0)
    (result,) = judge.compare("optimized", ["y"], [{"y": off(error)}])
    return result.same


@pytest.mark.parametrize(("drift", "allowed"), [
    (None, 2e-4),  # one draw: twice ORT's error without optimizations
    (0.5e-4, 2e-4),  # the larger of two
    (1.5e-4, 3e-4),
    (9e-4, 4e-4),  # a fault of ORT's optimizations excuses nothing of ours
    (float("inf"), 2e-4),
    (float("nan"), 2e-4),
])
def test_the_bound_is_twice_the_larger_draw_and_the_second_is_limited(drift: float | None, allowed: float) -> None:
    assert same(0.97 * allowed, drift)
    assert not same(1.03 * allowed, drift)


@pytest.mark.parametrize("quantised", [False, True])
def test_where_steps_are_rounded_the_bound_is_twice_what_a_last_bit_of_the_inputs_moves(quantised: bool) -> None:
    def off(by: float) -> np.ndarray:
        return (EXACT + np.array([by, 0.0, 0.0])).astype(np.float32)

    def verdict(error: float) -> bool:
        sample = Sample({}, "x=3", [off(0.0)], optimized_by_ort=[off(0.001)], nudged=[off(0.01)])
        judge = Judge(MODEL, Path("g.onnx"), [sample], None, None, 1, False, {}, 0.0)
        judge._quantised = quantised
        (result,) = judge.compare("optimized", ["y"], [{"y": off(error)}])
        return result.same

    assert verdict(0.0199) is quantised
    assert not verdict(0.0206)


@pytest.mark.parametrize(("rung", "times", "drawn", "error", "verdict", "asked"), [
    (ORT_DOUBLE, 8, 1.6e-4, 1.9e-4, True, False),  # in the bound that one draw gives
    (ORT_DOUBLE, 8, 1.6e-4, 3.1e-4, True, True),
    (ORT_DOUBLE, 8, 1.6e-4, 3.3e-4, False, True),
    (ORT_DOUBLE, 8, 0.5e-4, 2.1e-4, False, True),  # smaller errors take nothing away, and give nothing
    (ORT_DOUBLE, 8, 9e-4, 8.5e-4, False, False),  # far out: no error of ONNX Runtime's excuses it
    (ORT_DOUBLE, 1, 9e-4, 8.5e-4, True, True),  # of three values one draw tells little
    (ORT_DOUBLE, 1, 4e-4, 8.5e-4, False, True),
    (ORT_DOUBLE, 1, 9e-3, 1.4e-2, False, False),
    (EXPECTED, 8, 1.6e-4, 3.1e-4, False, False),  # outputs that were given belong to one set of inputs
])
def test_an_answer_just_out_of_its_bound_is_held_to_more_draws(rung: str, times: int, drawn: float, error: float,
                                                               verdict: bool, asked: bool) -> None:
    whole = np.tile(EXACT, times)

    def off(by: float, values: np.ndarray = whole) -> np.ndarray:
        return (values + np.eye(1, values.size)[0] * by).astype(np.float32)

    class Stub:
        asked = False

        def pairs(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
            self.asked = True
            moved = whole * 1.5
            return [([off(0, moved)], [moved]), ([off(drawn, moved)], [moved])]

    expected = {"y": whole} if rung == EXPECTED else {}
    sample = Sample({}, "x=3", [off(1e-4)], double=None if expected else (rung, [whole]))
    judge = Judge(MODEL, Path("g.onnx"), [sample], None, None, 1, False, expected, 0.0)
    stub = judge._draws = Stub()  # type: ignore[assignment]
    (result,) = judge.compare("optimized", ["y"], [{"y": off(error)}])
    assert (result.same, stub.asked) == (verdict, asked)
    assert any("drawn 2 more times" in note for note in result.notes) is asked


def test_a_bound_of_the_users_is_not_drawn_again() -> None:
    sample = Sample({}, "x=3", [EXACT.astype(np.float32)], double=(ORT_DOUBLE, [EXACT]))
    judge = Judge(MODEL, Path("missing.onnx"), [sample], None, 1e-4, 1, False, {}, 0.0)
    (result,) = judge.compare("optimized", ["y"], [{"y": (EXACT + 2e-4).astype(np.float32)}])
    assert not result.same
