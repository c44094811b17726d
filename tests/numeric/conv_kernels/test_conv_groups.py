"""Groups of which a block of channels holds several, against ONNX Runtime and float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.conv_kernels.conv_runner import reference, run
from tests.numeric.conv_kernels.test_conv_kernel import close, feeds_of, text_of
from tests.unit.conv_kernels.bodies import body
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.conv import algorithm, lower_conv, plan_conv

pytestmark = pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("n", "c", "k", "groups", "size", "kernel", "attributes"), [
    (1, 128, 128, 32, (14, 15), (3, 3), "pads=[1,1,1,1]"),  # ResNeXt
    (2, 64, 64, 8, (7, 9), (3, 3), "pads=[1,1,1,1], strides=[2,2]"),
    (2, 20, 20, 5, (6, 9), (3, 3), "pads=[0,2,1,0], dilations=[1,2]"),  # the last block holds one group
    (1, 24, 48, 24, (9, 40), (3, 3), "pads=[1,1,1,1]"),  # a multiplier of 2: two blocks read one
    (2, 5, 80, 5, (9,), (5,), "pads=[2,2]"),  # of 16: one channel of the source for a block
    (1, 12, 24, 6, (9, 20), (1, 1), ""),
    (1, 32, 32, 16, (60,), (20,), ""),  # taps in a loop
])
def test_shapes(n: int, c: int, k: int, groups: int, size: tuple[int, ...], kernel: tuple[int, ...], attributes: str,
                symbolic: bool) -> None:
    feeds = feeds_of(n, c, k, size, kernel, groups)
    text = text_of(feeds, attributes, "y = LeakyRelu(t)", groups)
    free = text
    if symbolic:
        free = text.replace(f"[{n},{c},{','.join(map(str, size))}] x", f"[N,{c},{','.join('HW'[:len(size)])}] x")
        free = free.replace(f"[{n},{k},A", f"[N,{k},A")
    made = body(free)
    assert algorithm(plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))) == "groups"
    got = run(free, feeds, fences=True)
    close(got, reference(text, feeds))
    exact = reference(text, feeds, wide=True)
    assert np.abs(got - exact).max() <= max(2 * np.abs(reference(text, feeds) - exact).max(),
                                            4 * np.finfo(np.float32).eps * np.abs(exact).max())


@pytest.mark.parametrize(("c", "k", "groups"), [(32, 32, 8), (12, 12, 6), (8, 32, 8)])
def test_vectors_of_256_bits(c: int, k: int, groups: int) -> None:
    feeds = feeds_of(1, c, k, (7, 11), (3, 3), groups)
    text = text_of(feeds, "pads=[1,1,1,1]", groups=groups)
    close(run(text, feeds, lanes=8, isa=Isa("x86-64-v3")), reference(text, feeds))


def test_an_infinity_stays_in_its_group() -> None:
    """No lane is multiplied by the zero of another group."""
    feeds = feeds_of(1, 32, 32, (6, 6), (3, 3), 8)
    feeds["x"][0, 5, 3, 3] = np.inf
    feeds["x"][0, 17, 2, 2] = np.nan
    text = text_of(feeds, "pads=[1,1,1,1]", groups=8)
    got, want = run(text, feeds), reference(text, feeds)
    assert np.isfinite(want[0, :4]).all()
    assert not np.isfinite(want[0, 4:8]).all()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
