"""ONNX Runtime's own error, of which the bound of a float output is made, has two draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from tilegraph.verify.judge import Judge, Sample

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
