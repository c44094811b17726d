"""Calls that are done a few items at a time: which units run when, and where what passes between them lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnxruntime as ort
import pytest

from tilegraph.spec.artifact import Rounds
from tilegraph.spec.dims import Dim

Serve = Callable[..., Any]

# "one": t[i] = x[i] + 1, and when[0] counts the calls, of which begun[i] keeps the number; "two": y[i] = 2 * t[i].
KERNELS = r"""
KERNEL(zero) {
  int bad_tag = 0;
  int64_t* when = POINTER(int64_t, 1);
  CHECK_TAGS(5);
  when[0] = 0;
  return bad_tag;
}
KERNEL(one) {
  int bad_tag = 0;
  const int64_t* x = POINTER(const int64_t, 0); int64_t* t = POINTER(int64_t, 1);
  int64_t* when = POINTER(int64_t, 2); int64_t* begun = POINTER(int64_t, 3);
  CHECK_TAGS(7);
  for (int64_t i = BEGIN; i < END; ++i) { t[i] = x[i] + 1; begun[i] = when[0]; }
  ++when[0];
  return bad_tag;
}
KERNEL(two) {
  int bad_tag = 0;
  const int64_t* t = POINTER(const int64_t, 0); int64_t* y = POINTER(int64_t, 1);
  CHECK_TAGS(5);
  for (int64_t i = BEGIN; i < END; ++i) y[i] = 2 * t[i];
  return bad_tag;
}
"""
WIDTH = 3  # units of an item


def rounds_program(extent: Dim | None = None, step: int = 2) -> Any:
    """The arena holds a counter, and behind it `step` items."""
    units = Dim.symbol("n") * WIDTH
    between = ep.arena(64, 8 * WIDTH)
    outputs = [ep.tensor("y", "int64", "n", WIDTH), ep.tensor("begun", "int64", "n", WIDTH)]
    calls = [ep.call("zero", [ep.source(0), ep.arena(0)], [], 1),
             ep.call("one", [ep.source(0), between, ep.arena(0), ep.result(1)], [], extent or units),
             ep.call("two", [between, ep.result(0)], [], units)]
    return ep.program([ep.tensor("x", "int64", "n", WIDTH)], outputs, calls, Dim.symbol("r") * (8 * WIDTH) + 64,
                      [Rounds(1, 2, Dim.symbol("n"), Dim.of(step), "r")])


@pytest.mark.parametrize("step", [1, 2, 5])
def test_rounds(serve: Serve, compile_kernels: Callable[..., Path], step: int) -> None:
    session = serve(ep.Artifact(compile_kernels(KERNELS), {"p": rounds_program(step=step)}))
    for n in (5, 1, 2, 0, 9):
        x = np.arange(n * WIDTH).reshape(n, WIDTH)
        y, begun = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, 2 * (x + 1))
        np.testing.assert_array_equal(begun, np.repeat(np.arange(n) // step, WIDTH).reshape(n, WIDTH))


def test_items_that_do_not_divide_a_call(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    session = serve(ep.Artifact(compile_kernels(KERNELS), {"p": rounds_program(Dim.symbol("n") + 1)}))
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="call 1 has 6 units for 5 items"):
        session.run(None, {"x": np.zeros((5, WIDTH), np.int64)})
