"""Common subexpressions are computed once."""

from __future__ import annotations

import numpy as np
import pytest
from norm_check import SPECIAL, ops, prepared, run

from tilegraph.rewrites.normalise import (
    CommonSubexpressions,
)

X = {"x": SPECIAL}


def cse(body: str, *, modified: bool, outputs: str = "float[8] y", feeds: bool = True) -> list[str]:
    model = prepared(f"g (float[8] x, float[8] v) => ({outputs}) <float[1] w = {{2.0}}> {{ {body} }}")
    run(CommonSubexpressions(), model, modified=modified, feeds={**X, "v": np.abs(SPECIAL)} if feeds else None)
    return ops(model)


def test_equal_chains_are_merged() -> None:
    assert cse("a = Neg(x)  b = Neg(x)  c = Exp(a)  d = Exp(b)  y = Add(c, d)", modified=True) == ["Neg", "Exp", "Add"]


@pytest.mark.parametrize("body", [
    "a = LeakyRelu <alpha = 0.1> (x)  b = LeakyRelu <alpha = 0.2> (x)  y = Add(a, b)",
    "a = Add(x, v)  b = Sub(x, v)  y = Add(a, b)",
    "a = Sub(x, v)  b = Sub(v, x)  y = Add(a, b)",
    "a = Cast <to = 11> (x)  b = Cast <to = 10> (x)  c = Cast <to = 1> (a)  d = Cast <to = 1> (b)  y = Add(c, d)",
    "a = LeakyRelu <alpha = 0.0> (x)  b = LeakyRelu <alpha = -0.0> (x)  y = Add(a, b)",
])
def test_different_nodes_stay(body: str) -> None:
    cse(body, modified=False)


@pytest.mark.parametrize("body", [
    "a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Add(a, b)",
    "a = RandomUniform <shape = [8]> ()  b = RandomUniform <shape = [8]> ()  y = Add(a, b)",
    "a = Bernoulli(v)  b = Bernoulli(v)  y = Add(a, b)",
    "t = Constant <value = bool {1}> ()  r = Constant <value_float = 0.5> ()  a = Dropout(x, r, t) "
    "b = Dropout(x, r, t)  y = Add(a, b)",
    "a = my.ops.Draw(x)  b = my.ops.Draw(x)  y = Add(a, b)",
])
def test_random_and_unknown_ops_stay(body: str) -> None:
    cse(body, modified=False, feeds=False)


def test_outputs_that_only_one_has_keep_both() -> None:
    norms = "a = LayerNormalization(x, v)  b, m = LayerNormalization(x, v)  c = Add(a, b)  y = Add(c, m)"
    assert cse(norms, modified=False).count("LayerNormalization") == 2


def test_omitted_optional_inputs_count() -> None:
    assert cse("a = Clip(x, , w0)  b = Clip(x, w0)  y = Add(a, b)  ".replace("w0", "s0").replace(
        "a =", "s0 = Constant <value_float = 1.0> ()  a ="), modified=False).count("Clip") == 2


def test_inputs_left_out_at_the_end_do_not_count() -> None:
    model = prepared("g (float[8] x) => (float[8] y) <float s = {1.0}> "
                     "{ a = Clip(x, s)  b = Clip(x, s)  y = Add(a, b) }")
    next(n for n in model.graph if n.outputs[0].name == "b").resize_inputs(3)
    run(CommonSubexpressions(), model, modified=True, feeds=X)
    assert ops(model) == ["Clip", "Add"]


def test_both_copies_may_be_outputs() -> None:
    assert cse("y = Neg(x)  z = Neg(x)", modified=True, outputs="float[8] y, float[8] z") == ["Neg", "Identity"]


def test_the_later_copy_is_an_output() -> None:
    assert cse("a = Neg(x)  y = Neg(x)  z = Exp(a)", modified=True,
               outputs="float[8] y, float[8] z") == ["Neg", "Exp"]


def test_branches_do_not_share_with_each_other_or_outside() -> None:
    model = prepared("""g (float[8] x, bool c) => (float[8] y, float[8] z) {
        z = Neg(x)
        y = If (c) <then_branch = t () => (float[8] r) { a = Neg(x)  b = Neg(x)  r = Add(a, b) },
                    else_branch = e () => (float[8] s) { s = Neg(x) }> }""")
    run(CommonSubexpressions(), model, modified=True, feeds={**X, "c": np.array(True)})
    assert ops(model) == ["Neg", "If", "Neg", "Add", "Neg"]
