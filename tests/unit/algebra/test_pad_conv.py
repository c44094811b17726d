"""Zeros around an image become a convolution's padding: each case, and a near miss for each refusal."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra import PadConv

STEP = PadConv()
X = {"x": values(2, 3, 6, 5, seed=1)}
W = {"w": values(4, 3, 3, 3, seed=2), "b": values(4, seed=3)}


def image(pad: str, attributes: str = "", out: str = "T[2, 4, h, v] y") -> str:
    return f"g (T[2, 3, 6, 5] x) => ({out}) {{ {pad}  y = Conv {attributes} (a, w, b) }}"


def amounts(*n: int) -> str:
    return f"p = Constant <value_ints = [{', '.join(map(str, n))}]> ()  a = Pad(x, p)"


ONE = amounts(0, 0, 1, 0, 0, 0, 2, 3)


@pytest.mark.parametrize("attributes", ["", "<pads = [0, 1, 1, 0]>", "<auto_pad = \"VALID\">", "<strides = [2, 2]>",
                                        "<dilations = [2, 1], pads = [1, 1, 1, 1]>"])
def test_zeros_join_the_padding(attributes: str) -> None:
    assert rewritten(STEP, image(ONE, attributes), feeds=X, **W) == ["Conv"]


@pytest.mark.parametrize("pad", [
    """p = Constant <value_ints = [1, 2]> ()  k = Constant <value_ints = [-1]> ()  a = Pad(x, p, z, k)""",
    "p = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> ()  a = Pad(x, p, z)",
])
def test_spellings(pad: str) -> None:
    assert rewritten(STEP, image(pad), feeds=X, opset=18, z=np.array(0.0), **W) == ["Conv"]


def test_pads_behind_each_other() -> None:
    assert rewritten(STEP, image(ONE.replace("a =", "c =") + "  a = Pad(c, p)"), feeds=X, **W) == ["Conv"]


def test_a_pad_that_others_read_stays_for_them() -> None:
    text = image(ONE, out="T[2, 4, h, v] y, T[2, 3, 9, 8] r").replace("y =", "r = Relu(a)  y =")
    assert rewritten(STEP, text, feeds=X, **W) == ["Pad", "Relu", "Conv"]


@pytest.mark.parametrize(("pad", "attributes", "reason"), [
    (ONE.replace("Pad(", "Pad <mode = \"reflect\"> ("), "", "repeats"),
    (ONE.replace("(x, p)", "(x, p, one)"), "", "not known to be 0"),
    (amounts(0, 0, 1, 0, 0, 0, -1, 0), "", "crops"),
    (ONE, "<auto_pad = \"SAME_UPPER\">", "padded size"),
])
def test_refused(pad: str, attributes: str, reason: str) -> None:
    context = PassContext()
    kept(STEP, image(pad, attributes), context=context, one=np.array(1.0), **W)
    assert [d.op for d in context.diagnostics if reason in d.reason] == ["Pad"]
