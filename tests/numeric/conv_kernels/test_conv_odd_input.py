"""Input that kernels get wrong easily: few and odd channels, images of one element, padding on one side only with
strides and dilations, larger than the image, and images whose offsets need more than 32 bits."""

from __future__ import annotations

import re

import pytest

from tests.numeric.conv_kernels.conv_runner import reference, run
from tests.numeric.conv_kernels.test_conv_kernel import close, feeds_of, text_of
from tests.unit.conv_kernels.bodies import body
from tilegraph.codegen import tvm_compat
from tilegraph.codegen.conv import generate
from tilegraph.codegen.isa import host
from tilegraph.ops.conv import lower_conv, plan_conv

pytestmark = pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")


@pytest.mark.parametrize("filters", [1, 3, 8, 17])
@pytest.mark.parametrize("channels", [1, 3, 8, 17])
@pytest.mark.parametrize("kernel", [1, 3])
def test_few_and_odd_channels(channels: int, filters: int, kernel: int) -> None:
    """One filter has a bias of one number, which is part of the epilogue."""
    feeds = feeds_of(2, channels, filters, (5, 7), (kernel, kernel))
    text = text_of(feeds, f"pads=[{','.join(['1' if kernel == 3 else '0'] * 4)}]", "y = LeakyRelu(t)")
    want = reference(text, feeds)
    close(run(text, feeds), want)
    close(run(text, feeds, blocked=()) if channels == 3 else run(text, feeds, plain_result=filters <= 16), want)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("kernel", "attributes"), [
    ((1, 1), ""), ((3, 3), "pads=[1,1,1,1]"), ((3, 3), "pads=[2,0,0,2]"), ((3, 1), "pads=[4,0,2,3], strides=[2,3]"),
])
def test_images_of_one_element(kernel: tuple[int, int], attributes: str, symbolic: bool) -> None:
    feeds = feeds_of(3, 20, 24, (1, 1), kernel)
    text = text_of(feeds, attributes)
    if symbolic:
        text = text.replace("[3,20,1,1] x", "[N,20,H,W] x").replace("[3,24,A", "[N,24,A")
    close(run(text, feeds, fences=True), reference(text, feeds))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("attributes", [
    "pads=[3,0,0,0], strides=[2,1], dilations=[1,3]", "pads=[0,0,5,1], strides=[3,2], dilations=[2,2]",
    "pads=[0,6,0,0], strides=[1,4], dilations=[3,1]", "pads=[9,9,9,9], strides=[5,5], dilations=[4,4]",
])
def test_padding_on_one_side_with_strides_and_dilations(attributes: str, symbolic: bool) -> None:
    for groups, c, k in ((1, 40, 24), (20, 20, 20)):
        feeds = feeds_of(2, c, k, (8, 9), (3, 3), groups)
        text = text_of(feeds, attributes, groups=groups)
        if symbolic:
            text = text.replace(f"[2,{c},8,9] x", f"[N,{c},H,W] x").replace(f"[2,{k},A", f"[N,{k},A")
        close(run(text, feeds, fences=True), reference(text, feeds))


@pytest.mark.parametrize(("window", "groups"), [
    ("Conv<pads=[1,1,1,1]>(x, w)", 1), ("Conv<strides=[2,2]>(x, w)", 1), ("Conv<group=32>(x, w)", 32),
    ("MaxPool<kernel_shape=[2,2]>(x)", 0),
])
def test_offsets_have_64_bits(window: str, groups: int) -> None:
    """An image of 32 channels of 65536x65536 has 2^37 elements: no loop and no extent may count with fewer bits."""
    depth = 32 // max(groups, 1)
    weights = f", float[32,{depth},3,3] w" if groups else ""
    for shape in ("1,32,65536,65536", "N,32,H,W"):
        made = body(f"(float[{shape}] x{weights}) => (float[N,32,A,B] y) {{ y = {window} }}")
        space = plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))
        text = tvm_compat.text(generate(space, "tg_test", 512).func)
        loops = [line for line in text.splitlines() if " in range(" in line]
        assert loops
        for line in loops:  # TVMScript writes integers of 64 bits as T.int64(n), those of 32 as n
            assert not re.search(r"(?<!\w)\d", re.sub(r"T\.int64\(-?\d+\)", "", line)), line
