"""Gathers at computed places, and integer division: ONNX Runtime's answers, and errors where it has errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.numeric.codegen.runner import compile_lowered, lower
from tests.numeric.codegen.test_special_values import ort_run, ours_run
from tests.numeric.conformance.conf_serve import parse, serve
from tests.unit.fusion.parse import model
from tilegraph.codegen.isa import Isa

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
X = RNG.normal(size=(7, 5, 6)).astype(np.float32)
H = "(float[7,5,6] x, int64"

# (text, indices or lengths, a value that is out of range)
GATHERS: dict[str, tuple[str, Array, int]] = {
    "Gather of rows": (f"{H}[2,3] i) => (float[2,3,5,6] y) {{ y = Gather<axis=0>(x, i) }}",
                       RNG.integers(-7, 7, (2, 3)), 7),
    "Gather of int32": ("(float[7,5,6] x, int32[4] i) => (float[7,4,6] y) { y = Gather<axis=1>(x, i) }",
                        RNG.integers(-5, 5, 4).astype(np.int32), -6),
    "Gather along the last axis": (f"{H}[9] i) => (float[7,5,9] y) {{ y = Gather<axis=-1>(x, i) }}",
                                   RNG.integers(-6, 6, 9), 6),
    "Gather of one": (f"{H} i) => (float[5,6] y) {{ y = Gather<axis=0>(x, i) }}", np.array(-2), -8),
    "Gather of a symbolic extent": ("(float[N,5,6] x, int64[3] i) => (float[3,5,6] y) { y = Gather<axis=0>(x, i) }",
                                    RNG.integers(-7, 7, 3), 7),
    "Gather before a sum of rows": (f"{H}[2,3] i) => (float[2,3,5,1] y) {{ g = Gather<axis=0>(x, i) "
                                    "y = ReduceL1<axes=[-1]>(g) }",
                                    RNG.integers(-7, 7, (2, 3)), 99),
    "GatherElements": (f"{H}[7,3,6] i) => (float[7,3,6] y) {{ y = GatherElements<axis=1>(x, i) }}",
                       RNG.integers(-5, 5, (7, 3, 6)), 5),
    "GatherElements of fewer": (f"{H}[4,5,8] i) => (float[4,5,8] y) {{ y = GatherElements<axis=2>(x, i) }}",
                                RNG.integers(-6, 6, (4, 5, 8)), -7),
    "GatherND": (f"{H}[4,2] i) => (float[4,6] y) {{ y = GatherND(x, i) }}", RNG.integers(-5, 5, (4, 2)), 9),
    "GatherND of elements": (f"{H}[2,4,3] i) => (float[2,4] y) {{ y = GatherND(x, i) }}",
                             RNG.integers(-5, 5, (2, 4, 3)), 7),
    "GatherND in batches": (f"{H}[7,4,1] i) => (float[7,4,6] y) {{ y = GatherND<batch_dims=1>(x, i) }}",
                            RNG.integers(-5, 5, (7, 4, 1)), 5),
    "ReverseSequence": (f"{H}[5] i) => (float[7,5,6] y) {{ y = ReverseSequence<time_axis=0, batch_axis=1>(x, i) }}",
                        np.array([0, 1, 7, 4, 3]), 8),
    "ReverseSequence of rows": (f"{H}[7] i) => (float[7,5,6] y) {{ y = ReverseSequence<time_axis=1, batch_axis=0>"
                                "(x, i) }", np.array([0, 1, 5, 4, 3, 2, 5]), -1),
}


@pytest.mark.parametrize("name", GATHERS)
def test_places_in_range_and_out_of_it(name: str) -> None:
    text, places, outside = GATHERS[name]
    made = model(text, 17)
    lowered = lower(list(made.graph), list(made.graph.outputs), 17)
    for isa in (Isa("x86-64-v3"), Isa("x86-64-v2", (), 32)):
        kernel = compile_lowered(lowered, isa)
        (ours,), (theirs,) = kernel.run({"x": X, "i": places}), ort_run(text, {"x": X, "i": places}, 17)
        assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max()
        for at in (0, places.size - 1):
            wrong = places.copy()
            wrong.reshape(-1)[at] = outside
            with pytest.raises(AssertionError):  # the kernel's result is not 0
                kernel.run({"x": X, "i": wrong})
        kernel.check_fences({"x": X, "i": places})


def test_a_gather_from_nothing_reads_nothing() -> None:
    text = "(float[N,5,6] x, int64[3] i) => (float[3,5,6] y) { y = Gather<axis=0>(x, i) }"
    with pytest.raises(AssertionError):
        ours_run(text, {"x": np.zeros((0, 5, 6), np.float32), "i": np.zeros(3, np.int64)}, 17)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_by_a_tensor(op: str, dtype: str) -> None:
    signed = dtype[0] == "i"
    text = f"({dtype}[3,37] x, {dtype}[3,37] z) => ({dtype}[3,37] y) {{ y = {op}(x, z) }}"
    x = RNG.integers(-100 if signed else 0, 100, (3, 37)).astype(dtype)
    z = RNG.integers(1, 20, (3, 37)).astype(dtype)
    if signed:
        z[1] = -z[1]
    (ours,), (theirs,) = ours_run(text, {"x": x, "z": z}, 14), ort_run(text, {"x": x, "z": z}, 14)
    assert np.array_equal(ours, theirs)
    z[2, 36] = 0
    with pytest.raises(AssertionError):
        ours_run(text, {"x": x, "z": z}, 14)


@pytest.mark.parametrize(("text", "bad", "message"), [
    ("g (float[7,8] x, int64[300,6] i) => (float[300,6,8] y) { y = Gather<axis=0>(x, i) }", 7,
     r"'[^']*region' failed: invalid input: Gather: an index is outside of \[-7, 6\]"),
    ("g (float[7,8] x, int64[300,6] i) => (int64[300,6] y, float[8] z) { seven = Constant<value_ints = [7]>() "
     "y = Div(seven, i) one = Constant<value_ints = [0]>() z = ReduceSum<keepdims = 0>(x, one) }", 0,
     "Div: an integer divisor is 0"),
])
def test_errors_of_a_run_name_the_node_and_the_reason(tmp_path: Path, text: str, bad: int, message: str) -> None:
    served = serve(parse(text), tmp_path)
    assert served.kernels
    feeds: dict[str, Array] = {"x": np.ones((7, 8), np.float32), "i": RNG.integers(1, 7, (300, 6))}
    served.check(**feeds)
    for at in (0, 1799):
        wrong = feeds["i"].copy()
        wrong.reshape(-1)[at] = bad
        with pytest.raises(Exception, match=message):
            served.session.run(None, {**feeds, "i": wrong})
    served.check(**feeds)  # and the session goes on


def test_constant_places_that_are_no_slices(tmp_path: Path) -> None:
    places = np.array([n**3 % 97 for n in range(1, 36)])
    served = serve(parse("g (float[99] x) => (float[35] y) { g = Gather(x, i) y = Neg(g) }", i=places), tmp_path)
    assert served.kernels == 1
    served.check(x=RNG.normal(size=99).astype(np.float32))
