"""Concat without empty operands: each case, and a near miss for each refusal."""

from __future__ import annotations

import numpy as np
import pytest
from norm_check import ops, prepared, run

from tilegraph.rewrites.normalise import EmptyOperands

STEP = EmptyOperands()
EMPTY = "b = Constant <value_ints = [4]> () e = Constant <value_ints = [99]> () t = Constant <value_ints = [1]> ()"


def inputs_of_concat(body: str, inputs: str = "float[n, 4] x", modified: bool = True) -> list[str]:
    model = prepared(f"g ({inputs}) => (float y) {{ {EMPTY} z = Slice(x, b, e, t) {body} }}")
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "w": np.ones((3, 2), np.float32)}
    names = {i.name for i in model.graph.inputs}
    run(STEP, model, modified=modified, feeds={k: v for k, v in feeds.items() if k in names})
    (concat,) = [n for n in model.graph if n.op_type == "Concat"]
    return [v.name or "" for v in concat.inputs if v is not None]


@pytest.mark.parametrize(("body", "left"), [
    ("a = Neg(x) y = Concat <axis = 1> (a, z)", ["a"]),
    ("a = Neg(x) y = Concat <axis = -1> (z, a, z)", ["a"]),
    ("a = Neg(x) y = Concat <axis = 1> (a, z, x)", ["a", "x"]),
])
def test_empty_operands_go(body: str, left: list[str]) -> None:
    assert inputs_of_concat(body) == left


@pytest.mark.parametrize(("body", "inputs"), [
    ("y = Concat <axis = 1> (z, z)", "float[n, 4] x"),  # nothing else is there
    ("y = Concat <axis = 1> (w, z)", "float[n, 4] x, float[m, 2] w"),  # n and m may differ, which is an error
    ("y = Concat <axis = 1> (x, w)", "float[n, 4] x, float[n, k] w"),  # a run decides whether k is 0
])
def test_others_stay(body: str, inputs: str) -> None:
    if "float[n, k]" in inputs:
        model = prepared(f"g ({inputs}) => (float y) {{ {body} }}")
        run(STEP, model, modified=False)
        assert ops(model) == ["Concat"]
    else:
        assert len(inputs_of_concat(body, inputs, modified=False)) == 2
