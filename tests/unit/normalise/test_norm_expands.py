"""Operands that an Expand repeats for an operator that broadcasts."""

from __future__ import annotations

import numpy as np
import pytest
from norm_check import ops, prepared, run

from tilegraph.rewrites.normalise import Expands

RNG = np.random.default_rng(6)
FEEDS = {"x": RNG.standard_normal((2, 4, 3, 5), np.float32), "s": RNG.standard_normal((2, 4, 1, 1), np.float32)}


def graph(body: str) -> str:
    return f"g (float[n,4,h,w] x, float[n,4,1,1] s) => (float[n,4,h,w] y) {{ t = Shape(x)  {body} }}"


@pytest.mark.parametrize("body", ["e = Expand(s, t)  y = Mul(x, e)", "e = Expand(s, t)  y = Sub(e, x)"])
def test_operands_are_read_as_they_are(body: str) -> None:
    model = run(Expands(), prepared(graph(body)), modified=True, feeds=FEEDS)
    (node,) = [n for n in model.graph if n.op_type in ("Mul", "Sub")]
    assert {v.name for v in node.inputs if v is not None} == {"x", "s"}


@pytest.mark.parametrize("body", [
    "e = Expand(s, t)  y = Max(e, x)",  # no operator that it is for
    "e = Expand(s, t)  y = Mul(e, s)",  # the Expand makes the result's shape
    "e = Expand(s, t)  y = Mul(e, e)",
    "e = Expand(s, t)  z = Identity(e)  y = Mul(x, z)",  # something between
])
def test_near_misses(body: str) -> None:
    run(Expands(), prepared(graph(body)), modified=False, feeds=FEEDS)


def test_one_of_two_stays() -> None:
    both = prepared(graph("e = Expand(s, t)  f = Expand(s, t)  y = Add(e, f)"))
    model = run(Expands(), both, modified=True, feeds=FEEDS)
    assert ops(model).count("Expand") == 2  # one of which nobody reads
