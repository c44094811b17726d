"""Convolutions along one axis: windows of hundreds of taps, as spectra have, and short lines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.codegen.runner import Array
from tests.numeric.conv_kernels.conv_runner import blocks, compiled, packed, plain, reference, run
from tests.unit.conv_kernels.bodies import body


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def check(source: tuple[int, ...], weights: tuple[int, ...], attributes: str = "", *, declared: str | None = None,
          blocked: bool, fences: bool = False) -> None:
    """`declared`: the source's shape as the model has it, where it is symbolic. The bound of `test_conv_kernel`:
    4 eps of the size of a sum."""
    x, w = normal(*source), normal(*weights) / np.float32(np.sqrt(weights[1] * weights[2]))
    text = (f"(float[{declared or ','.join(map(str, source))}] x, float[{','.join(map(str, weights))}] w) => "
            f"(float[n,{weights[0]},m] y) {{ y = Conv{attributes}(x, w) }}")
    got = run(text, {"x": x, "w": w}, blocked=("x",) if blocked else (), fences=fences)
    expected = reference(text, {"x": x, "w": w})
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 4e-6 * max(np.abs(expected).std(), 1)


@pytest.mark.parametrize(("source", "weights", "attributes"), [
    ((2, 1, 640), (258, 1, 256), "<strides=[128]>"),  # a spectrum
    ((1, 1, 300), (40, 1, 17), "<strides=[3]>"),  # one tap more than are written out
    ((3, 1, 90), (33, 1, 40), "<strides=[7], dilations=[2]>"),
    ((2, 1, 64), (32, 1, 48), "<pads=[20, 30], strides=[5]>"),  # groups of taps that only some results read
    ((1, 1, 20), (32, 1, 31), "<pads=[15, 15]>"),  # longer than the source: no tap is inside for all
    ((2, 2, 70), (16, 2, 33), "<pads=[16, 16], strides=[2]>"),
])
def test_windows_of_many_taps(source: tuple[int, ...], weights: tuple[int, ...], attributes: str) -> None:
    check(source, weights, attributes, blocked=False, fences=source[0] == 2)


@pytest.mark.parametrize("length", [17, 64, 80, 500])
def test_lines_of_unknown_length(length: int) -> None:
    check((2, 1, length), (40, 1, 17), "<strides=[4]>", declared="b,1,s", blocked=False)
    check((2, 1, length), (40, 1, 17), "<strides=[4], pads=[8, 8]>", declared="b,1,s", blocked=False)


def test_many_taps_and_channels() -> None:
    check((2, 20, 60), (32, 20, 21), "<pads=[10, 10]>", blocked=True)
    check((1, 32, 50), (16, 32, 18), "<strides=[2]>", blocked=True, fences=True)


@pytest.mark.parametrize(("length", "stride"), [(4, 1), (4, 2), (2, 2), (1, 1), (3, 2)])
def test_short_lines(length: int, stride: int) -> None:
    """The last layers of encoders: most taps are padding."""
    for batch, declared in ((1, None), (5, None), (7, f"b,33,{length}")):
        check((batch, 33, length), (48, 33, 3), f"<pads=[1, 1], strides=[{stride}]>", declared=declared, blocked=True)


@pytest.mark.parametrize(("op", "trained"), [
    ("Conv<kernel_shape=[3,5], pads=[1,2,1,2], group=40>", (3, 5)),
    ("Conv<kernel_shape=[1,5], pads=[0,4,0,1], group=40>", (1, 5)),  # more results than elements to read
    ("Conv<kernel_shape=[1,3], pads=[0,3,0,3], dilations=[1,2], group=40>", (1, 3)),
    ("Conv<kernel_shape=[1,4], pads=[0,0,0,2], group=40>", (1, 4)),
    ("Conv<kernel_shape=[1,3], group=40>", (1, 3)),
    ("Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[1,2], group=40>", (3, 3)),
    ("Conv<kernel_shape=[1,5], pads=[0,3,0,2], strides=[1,3], group=40>", (1, 5)),
    ("MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>", None),
    ("AveragePool<kernel_shape=[2,3], pads=[0,1,0,1], strides=[1,2]>", None),
])
def test_borders_of_unknown_lines(op: str, trained: tuple[int, int] | None) -> None:
    """Windows over each channel: lengths around one, two and three tiles of 14, one kernel for all of them."""
    name, attributes = op.split("<")
    weights = f", float[40,1,{trained[0]},{trained[1]}] w" if trained else ""
    text = (f"(float[N,40,4,W] x{weights}) => (float[N,40,A,B] y) "
            f"{{ t = {name}<{attributes}(x{', w' if trained else ''}) y = Mul(t, t) }}")
    made = compiled(body(text))
    for length in (5, 14, 17, 18, 29, 31, 43, 86):
        given = {"x": normal(2, 40, 4, length)} | ({"w": normal(40, 1, *trained)} if trained else {})
        (got,) = made.run(packed(made, given | {"x": blocks(given["x"], 16, np.nan)}), 2, 4)
        expected = reference(text, given)
        assert plain(got, 40).shape == expected.shape
        assert np.abs(plain(got, 40) - expected).max() <= 4e-6 * np.abs(expected).max(), length
