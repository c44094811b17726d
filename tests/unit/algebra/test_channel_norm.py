"""Scales and shifts between convolutions: each case, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import ChannelNorm

STEP = ChannelNorm()
X = {"x": values(2, 3, 6, 5, seed=1)}
A = {"w": values(4, 3, 3, 3, seed=2), "u": values(4, 4, 3, 3, seed=8), "s": np.array([1.7]), "t": np.array(-0.3),
     "c": values(4, 1, 1, seed=4), "d": values(1, 4, 1, 1, seed=5)}
FLOAT = ("float",)
PADS = "<pads = [1, 1, 1, 1]>"
HEAD = f"k = Conv {PADS} (x, w)  "


def graph(body: str, out: str = "T[2, 4, 6, 5] y") -> str:
    return f"g (T[2, 3, 6, 5] x) => ({out}) {{ {body} }}"


@pytest.mark.parametrize(("middle", "left"), [
    ("h = Relu(k)  a = Add(h, s)", ["Relu"]),
    ("h = Relu(k)  p = Mul(s, h)  q = Add(p, c)  a = Sub(d, q)", ["Relu"]),
    ("g0 = HardSigmoid(k)  h = Mul(k, g0)  a = Div(h, c)", ["HardSigmoid", "Mul"]),
    ("g0 = Sigmoid(k)  h = Mul(g0, k)  a = Add(h, t)", ["Sigmoid", "Mul"]),
    ("h = LeakyRelu(k)  h1 = Tanh(h)  a = Add(h1, t)", ["LeakyRelu", "Tanh"]),
])
def test_between_convolutions(middle: str, left: list[str]) -> None:
    text = graph(f"{HEAD} {middle}  y = Conv {PADS} (a, u)")
    found = rewritten(STEP, text, feeds=X, kinds=FLOAT, rtol=1e-6, **A)
    assert found == ["Conv", *left, "BatchNormalization", "Conv"]


def test_before_pooling_and_with_other_readers() -> None:
    text = graph(f"{HEAD} h = Relu(k)  a = Add(h, s)  z = Neg(a)  y = MaxPool <kernel_shape = [2, 2]> (a)",
                 out="T[2, 4, 5, 4] y, T[2, 4, 6, 5] z")
    found = rewritten(STEP, text, feeds=X, kinds=FLOAT, rtol=1e-6, **A)
    assert sorted(found) == ["BatchNormalization", "Conv", "MaxPool", "Neg", "Relu"]


@pytest.mark.parametrize("body", [
    f"h = Relu(x)  a = Add(h, s)  y = Conv {PADS} (a, w)",  # no convolution before
    f"{HEAD} h = Relu(k)  a = Add(h, s)  y = Neg(a)",  # none after
    f"{HEAD} h = Relu(k)  a = Add(h, r)  y = Conv {PADS} (a, u)",  # along the width
    f"{HEAD} h = Relu(k)  z = Neg(k)  a = Mul(h, z)  y = Conv {PADS} (a, u)",  # not a constant
    f"{HEAD} h = Exp(k)  a = Add(h, s)  y = Conv {PADS} (a, u)",  # not an activation that stays blocked
    f"{HEAD} e = Sigmoid(k)  f = Neg(k)  h = Mul(e, f)  a = Add(h, s)  y = Conv {PADS} (a, u)",  # another value's gate
    f"{HEAD} h = Relu(k)  y = Conv {PADS} (h, u)",  # nothing to do
])
def test_kept(body: str) -> None:
    kept(STEP, graph(body), **A, r=values(5))


def test_float64_and_old_opsets_are_kept() -> None:
    text = graph(f"{HEAD} h = Relu(k)  a = Add(h, s)  y = Conv {PADS} (a, u)")
    kept(STEP, text, kind="double", **A)
    kept(STEP, text, opset=8, **A)


def test_other_ranks_are_kept() -> None:
    kept(STEP, "g (T[2, 3, 9] x) => (T[2, 4, 5] y) { k = Conv(x, w)  h = Relu(k)  a = Add(h, s)  y = Conv(a, u) }",
         w=values(4, 3, 3), u=values(4, 4, 3), s=np.array(2.0))
