"""Computed Reshape targets become constants, where extents say so for every binding."""

from __future__ import annotations

import numpy as np
import pytest
from norm_check import ops, prepared, run

from tilegraph.rewrites.normalise import ReshapeTargets
from tilegraph.rewrites.normalise.edit import constant_of
from tilegraph.rewrites.normalise.reshape_targets import constant_target
from tilegraph.spec.dims import Dim

HEADS = """g (float[B, S, 48] x) => (float[B, S, 4, 12] y) {
    zero = Constant <value = int64[1] {0}> ()  one = Constant <value = int64[1] {1}> ()
    rest = Constant <value = int64[2] {4, 12}> ()
    n = Neg(x)  s = Shape(n)  b = Gather <axis = 0> (s, zero)  t = Gather <axis = 0> (s, one)
    target = Concat <axis = 0> (b, t, rest)  y = Reshape(n, target) }"""


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_head_split_copies_what_stays(batch: int) -> None:
    x = np.arange(batch * 5 * 48, dtype=np.float32).reshape(batch, 5, 48)
    model = run(ReshapeTargets(), prepared(HEADS), modified=True, feeds={"x": x})
    reshape = next(n for n in model.graph if n.op_type == "Reshape")
    constant = constant_of(reshape.inputs[1])
    assert constant is not None
    assert constant.numpy().tolist() == [0, 0, 4, 12]
    assert "Concat" in ops(model)  # dead, which is another pass's


@pytest.mark.parametrize(("wanted", "source", "expected"), [
    (["B", "S", 4, 12], ["B", "S", 48], [0, 0, 4, 12]),
    (["B*S", 48], ["B", "S", 48], [-1, 48]),
    ([1, 2, "B*S"], ["B", "S", 2], [1, 2, -1]),
    (["B", "S*4"], ["B", "S", 4], None),  # -1 beside a copied extent: nothing to infer if B is 0
    (["B*2", "S*2"], ["B", "S", 4], None),  # two extents that are neither
    (["S", "B"], ["B", "S"], None),
    ([0, "B"], ["B", 0], None),  # an extent of 0 would read as "copy"
    ([], [1], []),
])
def test_targets(wanted: list[str | int], source: list[str | int], expected: list[int] | None) -> None:
    assert constant_target([Dim.of(w) for w in wanted], tuple(Dim.of(s) for s in source)) == expected


def test_constant_and_unknown_targets_stay() -> None:
    run(ReshapeTargets(), prepared("""g (float[B, 6] x) => (float[B, 2, 3] y) {
        t = Constant <value = int64[3] {0, 2, 3}> ()  y = Reshape(x, t) }"""), modified=False)
    run(ReshapeTargets(), prepared("g (float[B, 6] x, int64[2] t) => (float[P, Q] y) { y = Reshape(x, t) }"),
        modified=False)


def test_allowzero_stays() -> None:
    run(ReshapeTargets(), prepared(HEADS.replace("Reshape(n", "Reshape <allowzero = 1> (n")), modified=False)
