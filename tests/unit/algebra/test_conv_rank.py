"""Convolutions along one axis: each case, the trunk between them, and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from algebra_check import applied, kept, ops, prepared, rewritten, values

from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra import ConvRank

STEP = ConvRank()
FLOAT = ("float",)
W = values(32, 32, 3, seed=2)


def one(attributes: str = "", out: int = 7, channels: int = 32, filters: int = 32, more: str = "") -> str:
    return f"""g (T[4, {channels}, 9] x) => (T[4, {filters}, {out}] y) {{ y = Conv {attributes} (x, w{more}) }}"""


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize(("attributes", "out"), [
    ("", 7), ("<kernel_shape = [3], pads = [1, 1]>", 9), ("<pads = [0, 2], strides = [2]>", 5),
    ("<dilations = [2], pads = [2, 1]>", 8), ("<auto_pad = \"SAME_UPPER\">", 9),
])
def test_one_convolution(attributes: str, out: int, opset: int) -> None:
    found = rewritten(STEP, one(attributes, out, more=", b"), feeds={"x": values(4, 32, 9)}, kinds=FLOAT, rtol=1e-6,
                      opset=opset, w=W, b=values(32))
    assert found == ["Unsqueeze", "Conv", "Squeeze"]


@pytest.mark.parametrize("opset", [11, 17])
def test_channels_are_filled_up_to_four(opset: int) -> None:
    found = rewritten(STEP, one(channels=33), feeds={"x": values(4, 33, 9)}, kinds=FLOAT, rtol=1e-6, opset=opset,
                      w=values(32, 33, 3))
    assert found == ["Unsqueeze", "Pad", "Conv", "Squeeze"]


def test_one_channel_and_depthwise() -> None:
    found = rewritten(STEP, one(channels=1), feeds={"x": values(4, 1, 9)}, kinds=FLOAT, rtol=1e-6, w=values(32, 1, 3))
    assert found == ["Unsqueeze", "Conv", "Squeeze"]
    found = rewritten(STEP, one("<group = 32>"), feeds={"x": values(4, 32, 9)}, kinds=FLOAT, rtol=1e-6,
                      w=values(32, 1, 3))
    assert found == ["Unsqueeze", "Conv", "Squeeze"]


def test_a_trunk_is_one_image() -> None:
    text = """g (T[n, 32, 9] x) => (T[n, 32, 5] y) { a = Conv(x, w)  b = Relu(a)  c = Conv <pads = [1, 1]> (b, w)
        d = Tanh(c)  e = Add(d, b)  f = LeakyRelu <alpha = 0.3> (e)  y = Conv(f, w) }"""
    found = rewritten(STEP, text, feeds={"x": values(4, 32, 9)}, kinds=FLOAT, rtol=1e-6, w=W)
    assert found == ["Unsqueeze", "Conv", "Relu", "Conv", "Tanh", "Add", "LeakyRelu", "Conv", "Squeeze"]


def test_other_readers_get_a_squeeze() -> None:
    text = """g (T[4, 32, 9] x) => (T[4, 32, 5] y, T[4, 32, 7] z) { a = Conv(x, w)  b = Relu(a)  z = Exp(b)
        y = Conv(b, w) }"""
    found = rewritten(STEP, text, feeds={"x": values(4, 32, 9, low=-.1, high=.1)}, kinds=FLOAT, rtol=1e-6, w=W / 10)
    assert sorted(found) == ["Conv", "Conv", "Exp", "Relu", "Squeeze", "Squeeze", "Unsqueeze"]


def test_a_sum_with_something_else_is_not_lifted() -> None:
    text = "g (T[4, 32, 9] x, T[4, 32, 7] z) => (T[4, 32, 7] y) { a = Conv(x, w)  y = Add(a, z) }"
    found = rewritten(STEP, text, feeds={"x": values(4, 32, 9), "z": values(4, 32, 7)}, kinds=FLOAT, rtol=1e-6, w=W)
    assert found == ["Unsqueeze", "Conv", "Squeeze", "Add"]


def test_inside_a_branch() -> None:
    text = """g (T[4, 32, 9] x, bool k) => (T[4, 32, 7] y) {
        y = If (k) <then_branch = t () => (float[4, 32, 7] r) { r = Conv(x, w) },
                    else_branch = e () => (float[4, 32, 7] q) { p = Conv(x, w)  q = Relu(p) }> }"""
    feeds = {"x": values(4, 32, 9), "k": np.array(False)}
    found = rewritten(STEP, text, feeds=feeds, kinds=FLOAT, rtol=1e-6, w=W)
    assert sorted(found) == ["Conv", "Conv", "If", "Relu", "Squeeze", "Squeeze", "Unsqueeze", "Unsqueeze"]


# -- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "weights"), [
    ("g (T[4, 32, 1027] x) => (T[4, 32, 1025] y) { y = Conv(x, w) }", (32, 32, 3)),
    ("g (T[3, 32, 7] x) => (T[3, 32, 5] y) { y = Conv(x, w) }", (32, 32, 3)),  # 15 positions
    ("g (T[99, 32, 3] x) => (T[99, 32, 1] y) { y = Conv(x, w) }", (32, 32, 3)),
    ("g (T[4, 32, n] x) => (T[4, 32, m] y) { y = Conv(x, w) }", (32, 32, 3)),
    ("g (T[4, 32, 9] x) => (T[4, 31, 7] y) { y = Conv(x, w) }", (31, 32, 3)),
    ("g (T[4, 31, 9] x) => (T[4, 32, 7] y) { y = Conv(x, w) }", (32, 31, 3)),
    ("g (T[4, 33, 67] x) => (T[4, 32, 65] y) { y = Conv(x, w) }", (32, 33, 3)),
    ("g (T[4, 64, 9] x) => (T[4, 32, 7] y) { y = Conv <group = 2> (x, w) }", (32, 32, 3)),
    ("g (T[4, 40, 9] x) => (T[4, 40, 7] y) { y = Conv <group = 40> (x, w) }", (40, 1, 3)),
    ("g (T[4, 32, 9, 9] x) => (T[4, 32, 7, 7] y) { y = Conv(x, w) }", (32, 32, 3, 3)),
])
def test_kept(text: str, weights: tuple[int, ...]) -> None:
    kept(STEP, text, w=values(*weights))


def test_other_types_old_opsets_and_computed_weights_are_kept() -> None:
    kept(STEP, one(), kind="double", w=W)
    kept(STEP, one(), opset=10, w=W)
    kept(STEP, "g (T[4, 32, 9] x, T[32, 32, 3] v) => (T[4, 32, 7] y) { w = Neg(v)  y = Conv(x, w) }")


def test_shared_weights_are_copied_within_the_limit_only() -> None:
    text = "g (T[4, 32, 9] x, T[3] z) => (T[4, 32, 7] y, T[32, 32, 3] q) { y = Conv(x, w)  q = Mul(w, z) }"
    kept(STEP, text, w=W, context=PassContext(fold_limit_bytes=W.size * 4 - 1))
    model = applied(STEP, prepared(text, w=W), modified=True)
    assert ops(model) == ["Unsqueeze", "Conv", "Squeeze", "Mul"]
