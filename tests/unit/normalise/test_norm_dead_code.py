"""Unused nodes go, subgraphs and captures included."""

from __future__ import annotations

import numpy as np
from norm_check import SPECIAL, loaded, ops, run

from tilegraph.rewrites.normalise import (
    DeadCode,
)

X = {"x": SPECIAL}


def test_dead_chains_go_and_captured_values_stay() -> None:
    model = loaded("""g (float[8] x, bool c) => (float[8] y) {
        a = Neg(x)  b = Abs(a)  d = Exp(b)  used = Sin(x)  unused = Cos(x)
        y = If (c) <then_branch = t () => (float[8] r) { r = Relu(used)  q = Tan(unused) },
                    else_branch = e () => (float[8] s) { s = Neg(x) }> }""")
    run(DeadCode(), model, modified=True, feeds={**X, "c": np.array(False)})
    assert ops(model) == ["Sin", "If", "Relu", "Neg"]


def test_a_dead_if_releases_what_it_captured() -> None:
    model = loaded("""g (float[8] x, bool c) => (float[8] y) {
        a = Neg(x)
        z = If (c) <then_branch = t () => (float[8] r) { b = Exp(a)  r = Relu(b) },
                    else_branch = e () => (float[8] s) { s = Sin(a) }>
        y = Abs(x) }""")
    run(DeadCode(), model, modified=True, feeds={**X, "c": np.array(False)})
    assert ops(model) == ["Abs"]


def test_one_used_output_keeps_the_node() -> None:
    model = loaded("g (float[8] x) => (float[4] y) { z, y = Split <axis = 0> (x) }")
    run(DeadCode(), model, modified=False)
