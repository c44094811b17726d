"""Convolution kernels in blocked layout against float64 and ONNX Runtime: sizes with tails, borders, strides, dilation,
groups, symbolic extents, epilogues, instruction sets, memory that must not be touched."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.codegen.runner import Array
from tests.numeric.conv_kernels.conv_runner import compiled, reference, run
from tests.unit.conv_kernels.bodies import body
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.conv import algorithm, lower_conv, plan_conv
from tilegraph.ops.prims import Decline

pytestmark = pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def feeds_of(n: int, c: int, k: int, size: tuple[int, ...], kernel: tuple[int, ...], groups: int = 1) \
        -> dict[str, Array]:
    depth = c // groups
    return {"x": normal(n, c, *size), "b": normal(k, seed=2),
            "w": normal(k, depth, *kernel, seed=1, scale=(depth * np.prod(kernel)) ** -0.5)}


def close(got: Array, want: Array) -> None:
    """Results of size 1 from sums of up to a few thousand products."""
    assert got.shape == want.shape
    assert float(np.std(want)) > 0.1, "a constant answer proves nothing"
    assert float(np.abs(got - want).max()) <= 1e-5


def text_of(feeds: dict[str, Array], attributes: str, tail: str = "y = Identity(t)", groups: int = 1) -> str:
    x, w = (",".join(map(str, feeds[name].shape)) for name in "xw")
    rank = feeds["x"].ndim - 2
    out = ",".join("ABC"[:rank])
    return (f"(float[{x}] x, float[{w}] w, float[{len(feeds['b'])}] b) => (float[{len(feeds['x'])},{len(feeds['b'])},"
            f"{out}] y) {{ t = Conv<{attributes}{', ' if attributes else ''}group={groups}>(x, w, b) {tail} }}")


@pytest.mark.parametrize(("c", "k", "size", "kernel", "attributes"), [
    (16, 16, (5, 7), (1, 1), ""),
    (64, 32, (14, 14), (1, 1), ""),
    (40, 24, (1, 450), (1, 1), ""),
    (1200, 48, (3, 5), (1, 1), "strides=[2,2]"),
    (32, 96, (9, 9), (3, 3), "pads=[1,1,1,1]"),
    (24, 40, (11, 17), (3, 3), "pads=[1,1,1,1], strides=[2,2]"),
    (16, 176, (4, 4), (3, 3), "pads=[1,1,1,1]"),
    (80, 16, (6, 30), (5, 3), "pads=[0,2,4,1]"),
    (33, 17, (9, 8), (3, 3), "pads=[2,2,2,2], dilations=[2,2]"),
    (16, 32, (13, 12), (3, 2), "dilations=[3,2], strides=[2,3], pads=[1,0,2,5]"),
    (32, 16, (7, 7), (7, 7), ""),
    (16, 16, (3, 3), (3, 3), "pads=[3,3,3,3]"),
    (16, 16, (8, 8), (3, 3), "auto_pad=\"SAME_LOWER\", strides=[2,2]"),
    (16, 64, (200,), (5,), "pads=[2,2], strides=[2]"),
    (64, 16, (1,), (3,), "pads=[1,1]"),
    (144, 32, (20,), (9,), ""),
    (34, 24, (6, 9), (3, 3), "strides=[2,1]"),  # channels in pairs, two in the last block
    (20, 8, (9, 10), (1, 1), ""),
    (320, 40, (5, 9), (1, 1), ""),  # a first, a middle and a last part of a sum
])
def test_shapes(c: int, k: int, size: tuple[int, ...], kernel: tuple[int, ...], attributes: str) -> None:
    feeds = feeds_of(2, c, k, size, kernel)
    text = text_of(feeds, attributes)
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("n", "c", "k", "size", "pads"), [
    (1, 32, 32, (12, 12), "1,1,1,1"), (2, 64, 176, (13, 15), "1,1,1,1"), (1, 100, 40, (12, 33), "0,1,2,0"),
    (1, 48, 48, (15, 14), "2,2,2,2"), (2, 16, 17, (8, 7), "1,1,1,1"), (3, 256, 32, (28, 28), "1,1,1,1"),
    (1, 16, 16, (40, 1), "1,1,1,1"),
])
def test_winograd(n: int, c: int, k: int, size: tuple[int, int], pads: str, symbolic: bool) -> None:
    feeds = feeds_of(n, c, k, size, (3, 3))
    text = text_of(feeds, f"pads=[{pads}]", "y = LeakyRelu(t)")
    if symbolic:
        text = text.replace(f"[{n},{c},{size[0]},{size[1]}] x", f"[N,{c},H,W] x").replace(f"[{n},{k},A", f"[N,{k},A")
    made = body(text)
    assert algorithm(plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))) == "winograd"
    got, plain_answer, exact = run(text, feeds), reference(text, feeds), reference(text, feeds, wide=True)
    close(got, plain_answer)
    # Decision 12: at most twice ONNX Runtime's own error, or four units in the last place of the largest result.
    error, other = (float(np.abs(a - exact).max()) for a in (got, plain_answer))
    assert error <= max(2 * other, 4 * 1.2e-7 * float(np.abs(exact).max()))


@pytest.mark.parametrize(("channels", "size"), [(128, 28), (256, 14)])
def test_two_threads_share_few_tiles_evenly(channels: int, size: int) -> None:
    """7 and 5 parts of the tiles: without halves of the filters one of two threads would do 4 or 3 of them."""
    text = text_of(feeds_of(1, channels, channels, (size, size), (3, 3)), "pads=[1,1,1,1]")
    extent = compiled(body(text)).kernel.extent.as_int()
    assert extent is not None
    assert extent % 2 == 0


@pytest.mark.parametrize(("k", "size", "kernel", "attributes", "units"), [
    (160, 7, (1, 1), "", 10), (48, 13, (3, 3), "pads=[1,1,1,1], strides=[2,2]", 2),
    (48, 3, (1, 1), "", 1),  # nine results are one tile
])
def test_two_threads_share_few_units_evenly(k: int, size: int, kernel: tuple[int, int], attributes: str,
                                            units: int) -> None:
    feeds = feeds_of(1, 160, k, (size, size), kernel)
    text = text_of(feeds, attributes)
    assert compiled(body(text)).kernel.extent == units
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize(("c", "k", "kernel", "attributes"), [
    (3, 32, (7, 7), "pads=[3,3,3,3], strides=[2,2]"),
    (1, 16, (3, 3), "pads=[1,1,1,1]"),
    (4, 24, (1, 1), ""),
    (20, 16, (3, 3), ""),
])
def test_a_plain_source(c: int, k: int, kernel: tuple[int, int], attributes: str) -> None:
    feeds = feeds_of(2, c, k, (21, 30), kernel)
    text = text_of(feeds, attributes)
    close(run(text, feeds, blocked=()), reference(text, feeds))


@pytest.mark.parametrize(("c", "k", "groups"), [(64, 64, 2), (96, 192, 3), (32, 128, 2)])
def test_groups(c: int, k: int, groups: int) -> None:
    feeds = feeds_of(1, c, k, (9, 10), (3, 3), groups)
    text = text_of(feeds, "pads=[1,1,1,1]", groups=groups)
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize(("c", "size", "kernel", "attributes"), [
    (16, (9, 20), (3, 3), "pads=[1,1,1,1]"),
    (40, (14, 13), (5, 5), "pads=[2,2,2,2], strides=[2,2]"),
    (24, (30,), (3,), "dilations=[2]"),
    (96, (3, 3), (3, 3), "pads=[1,1,1,1]"),
    (16, (8, 19), (3, 2), "pads=[2,1,0,1], dilations=[1,2]"),  # rows in pairs
    (16, (51, 45), (3, 3), "pads=[1,1,1,1]"),  # units of them, and one that is left over
    (16, (40, 4), (20, 1), ""),
    (16, (4, 60), (1, 20), "pads=[0,3,0,10]"),
])
def test_depthwise(c: int, size: tuple[int, ...], kernel: tuple[int, ...], attributes: str) -> None:
    feeds = feeds_of(2, c, c, size, kernel, c)
    after = "y = Sigmoid(t)" if size == (9, 20) else "y = Relu(t)"  # a loop over the results of a tile, or not
    text = text_of(feeds, attributes, after, groups=c)
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize("size", [(1, 1, 1), (2, 5, 3), (1, 9, 40), (3, 2, 17)])
@pytest.mark.parametrize(("kernel", "attributes", "groups"), [
    ((3, 3), "pads=[1,1,1,1]", 1), ((3, 3), "pads=[1,1,1,1], strides=[2,2]", 1), ((1, 1), "", 1),
    ((5, 5), "pads=[4,4,4,4], dilations=[2,2], strides=[1,3]", 1), ((3, 3), "pads=[1,1,1,1]", 32),
    ((1, 1), "strides=[2,2]", 1),
])
def test_symbolic_extents(size: tuple[int, int, int], kernel: tuple[int, int], attributes: str, groups: int) -> None:
    feeds = feeds_of(size[0], 32, 32, size[1:], kernel, groups)
    text = text_of(feeds, attributes, groups=groups)
    text = text.replace(f"[{','.join(map(str, feeds['x'].shape))}] x", "[N,32,H,W] x").replace(
        f"[{size[0]},32,A", "[N,32,A")
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize("c", [16, 720])
def test_epilogues(c: int) -> None:
    feeds = {**feeds_of(2, c, 48, (6, 11), (3, 3)), "r": normal(2, 48, 6, 11, seed=3), "s": normal(2, 48, 1, 1, seed=4)}
    text = (f"(float[2,{c},6,11] x, float[48,{c},3,3] w, float[48] b, float[2,48,6,11] r, float[2,48,1,1] s) => "
            "(float[2,48,6,11] y) { t = Conv<pads=[1,1,1,1]>(x, w, b) u = Sigmoid(t) v = Mul(t, u) z = Mul(v, s) "
            "y = Add(z, r) }")
    close(run(text, feeds, blocked=("x", "r", "s")), reference(text, feeds))


@pytest.mark.parametrize("tail", ["y = Relu(t)", "y = HardSwish(t)", "y = Erf(t)"])
def test_activations(tail: str) -> None:
    feeds = feeds_of(1, 16, 40, (8, 9), (3, 3))
    text = text_of(feeds, "", tail)
    close(run(text, feeds), reference(text, feeds))


@pytest.mark.parametrize(("size", "op"), [
    ((9, 20), "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>"),
    ((8, 7), "MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>"),
    ((11, 30), "MaxPool<kernel_shape=[5,5], pads=[2,2,2,2]>"),
    ((20, 6), "MaxPool<kernel_shape=[3,2], dilations=[2,3]>"),
    ((9, 20), "AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>"),
    ((8, 6), "AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1, count_include_pad=1>"),
    ((7, 9), "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>"),
    ((9, 20), "AveragePool<kernel_shape=[3,3], strides=[2,1], pads=[1,1,1,1], count_include_pad=1>"),
    ((7, 7), "GlobalAveragePool"),
    ((40, 33), "GlobalAveragePool"),
    ((5, 6), "GlobalMaxPool"),
    ((30,), "MaxPool<kernel_shape=[3], strides=[2]>"),
])
@pytest.mark.parametrize("channels", [16, 40, 80])
def test_pooling(size: tuple[int, ...], op: str, channels: int) -> None:
    x = normal(2, channels, *size) + normal(2, channels, *(1,) * len(size), seed=1)
    out = ",".join("ABC"[:len(size)])
    text = (f"(float[2,{channels},{','.join(map(str, size))}] x) => (float[2,{channels},{out}] y) {{ t = {op}(x) "
            "y = Mul(t, t) }")
    close(run(text, {"x": x}), reference(text, {"x": x}))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("window", ["kernel_shape=[2,2]", "kernel_shape=[3,3], pads=[1,1,1,1]"])
def test_pooling_that_rounds_up_symbolic_extents(op: str, window: str) -> None:
    text = (f"(float[N,32,H,W] x) => (float[N,32,A,B] y) {{ t = {op}<ceil_mode=1, strides=[2,2], {window}>(x) "
            "y = Mul(t, t) }")
    for size in ((9, 6), (1, 41)):
        x = normal(2, 32, *size) + 1
        close(run(text, {"x": x}), reference(text, {"x": x}))


def test_pooling_of_symbolic_extents() -> None:
    x = normal(2, 32, 5, 9) + 1
    text = "(float[N,32,H,W] x) => (float[N,32,1,1] y) { y = GlobalAveragePool(x) }"
    want = x.mean((2, 3), keepdims=True)
    assert float(np.abs(run(text, {"x": x}) - want).max()) <= 1e-6


@pytest.mark.parametrize("base", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(("c", "k", "size"), [(24, 40, (9, 13)), (3, 16, (8, 8)), (100, 8, (7, 7))])
def test_instruction_sets(base: str, c: int, k: int, size: tuple[int, int]) -> None:
    feeds = feeds_of(1, c, k, size, (3, 3))
    text = text_of(feeds, "pads=[1,1,1,1]", "y = Tanh(t)")
    got = run(text, feeds, lanes=8 if base == "x86-64-v3" else 16, isa=Isa(base), blocked=("x",) if c > 4 else ())
    close(got, reference(text, feeds))


def test_blocks_are_those_of_the_vectors() -> None:
    feeds = feeds_of(1, 16, 16, (4, 4), (1, 1))
    with pytest.raises(Decline, match="blocks of 8 channels, but vectors of 16"):
        run(text_of(feeds, ""), feeds, lanes=8, isa=Isa("x86-64-v4"))
    with pytest.raises(Decline, match="256 bits or more"):
        compiled(body(text_of(feeds, ""), 8), Isa("x86-64-v2"))


@pytest.mark.parametrize(("c", "k", "size", "kernel", "attributes", "groups"), [
    (24, 24, (5, 9), (3, 3), "pads=[1,1,1,1]", 1), (17, 40, (1, 33), (1, 1), "", 1), (600, 16, (4, 5), (3, 3), "", 1),
    (32, 32, (6, 6), (3, 3), "pads=[1,1,1,1]", 32), (40, 40, (13, 15), (3, 3), "pads=[1,1,1,1]", 1),
    (3, 8, (9, 9), (3, 3), "pads=[1,1,1,1], strides=[2,2]", 1),
])
def test_nothing_outside_is_touched(c: int, k: int, size: tuple[int, int], kernel: tuple[int, int], attributes: str,
                                    groups: int) -> None:
    feeds = feeds_of(1, c, k, size, kernel, groups)
    text = text_of(feeds, attributes, groups=groups)
    close(run(text, feeds, blocked=("x",) if c > 4 else (), fences=True), reference(text, feeds))


@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize(("n", "c", "k", "size", "kernel", "pads"), [
    (2, 40, 24, (9, 13), 1, 0), (3, 16, 33, (1, 7), 1, 0), (1, 1200, 16, (3, 5), 1, 0), (2, 50, 20, (5, 6), 3, 1),
    (2, 88, 40, (12, 13), 3, 1), (2, 70, 130, (6, 5), (1, 3), 0),
])
def test_channels_of_the_source_are_scaled(n: int, c: int, k: int, size: tuple[int, int], kernel: object, pads: int,
                                           shortcut: bool) -> None:
    """1x1, sums in chunks, direct and Winograd windows."""
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    feeds = feeds_of(n, c, k, size, window)
    feeds["s"] = normal(n, c, 1, 1, seed=5)
    x = ",".join(map(str, feeds["x"].shape))
    before = "p = Mul(s, x) q = Add(x, p)" if shortcut else "q = Mul(x, s)"
    text = (f"(float[{x}] x, float[{','.join(map(str, feeds['w'].shape))}] w, float[{k}] b, float[{n},{c},1,1] s) => "
            f"(float[{n},{k},A,B] y) {{ {before} t = Conv<pads=[{pads},{pads},{pads},{pads}]>(q, w, b) y = Relu(t) }}")
    made = body(text, blocked=("x", "s"))
    space = plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))
    assert space.factor is not None
    assert algorithm(space) == ("winograd" if size == (12, 13) else "direct")
    close(run(text, feeds, blocked=("x", "s"), fences=True), reference(text, feeds))


@pytest.mark.parametrize(("before", "why"), [
    ("q = Add(x, s)", "computed"), ("q = Mul(x, x)", "computed"), ("p = Mul(x, s) q = Mul(p, s)", "computed"),
    ("p = Mul(x, s) r = Mul(x, s) q = Add(p, r)", "computed"), ("q = Max(x, s)", "computed"),
])
def test_other_sources_are_refused(before: str, why: str) -> None:
    text = (f"(float[1,16,4,4] x, float[16,16,1,1] w, float[1,16,1,1] s) => (float[1,16,4,4] y) "
            f"{{ {before} y = Conv(q, w) }}")
    made = body(text, blocked=("x", "s"))
    with pytest.raises(Decline, match=why):
        plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("n", "c", "k", "size", "stride"), [
    (2, 24, 24, (5, 7), (2, 2)), (1, 40, 33, (3, 1), (2, 3)), (1, 16, 1, (6, 6), (2, 2)), (2, 16, 16, (1, 1), (4, 4)),
    (1, 20, 48, (9, 30), (1, 2)), (1, 600, 17, (4, 5), (2, 2)), (2, 17, 20, (11,), (3,)),
])
def test_transposed(n: int, c: int, k: int, size: tuple[int, ...], stride: tuple[int, ...], symbolic: bool) -> None:
    """ConvTranspose whose windows do not overlap."""
    feeds = {"x": normal(n, c, *size), "w": normal(c, k, *stride, seed=1, scale=c ** -0.5), "b": normal(k, seed=2),
             "r": normal(n, k, *(s * f for s, f in zip(size, stride, strict=True)), seed=4)}
    x, w, r = (",".join(map(str, feeds[name].shape)) for name in "xwr")
    out, rest, tail = r, f", float[{r}] r", "u = Add(t, r) y = Relu(u)"
    if symbolic:
        x, out = (",".join(["N", str(channels), *dims[:len(size)]]) for channels, dims in ((c, "HW"), (k, "AB")))
        rest, tail = "", "y = Relu(t)"
        feeds.pop("r")
    text = (f"(float[{x}] x, float[{w}] w, float[{k}] b{rest}) => (float[{out}] y) "
            f"{{ t = ConvTranspose<strides=[{','.join(map(str, stride))}]>(x, w, b) {tail} }}")
    close(run(text, feeds, blocked=("x", "r"), fences=True), reference(text, feeds))


@pytest.mark.parametrize(("n", "c", "k", "size", "window", "attributes", "symbolic"), [
    (2, 20, 24, (5, 7), (4, 4), "strides=[2,2], pads=[1,1,1,1]", False),
    (1, 33, 40, (6, 18), (3, 3), "strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]", False),
    (1, 16, 16, (4, 5), (3, 3), "strides=[2,2]", True), (1, 16, 16, (4, 5), (3, 3), "strides=[2,2]", False),
    (2, 17, 16, (3, 1), (5, 7), "strides=[2,3], pads=[0,2,3,1]", False),
    (1, 40, 17, (4, 30), (3, 3), "pads=[1,0,1,2]", False),
    (1, 16, 20, (5, 5), (2, 2), "strides=[2,2], pads=[1,0,0,1]", True),
    (1, 24, 18, (9,), (8,), "strides=[3], pads=[2,2], output_padding=[1]", True),
    (1, 300, 16, (3, 4), (6, 6), "strides=[2,2]", False),
])
def test_transposed_windows_that_overlap(n: int, c: int, k: int, size: tuple[int, ...], window: tuple[int, ...],
                                         attributes: str, symbolic: bool) -> None:
    feeds = {"x": normal(n, c, *size), "w": normal(c, k, *window, seed=1, scale=c ** -0.5), "b": normal(k, seed=2)}
    dims, out = "HW"[:len(size)], "AB"[:len(size)]
    x = ",".join(["N", str(c), *dims] if symbolic else map(str, feeds["x"].shape))
    y = ",".join([x.partition(",")[0], str(k), *out])
    text = (f"(float[{x}] x, float[{','.join(map(str, feeds['w'].shape))}] w, float[{k}] b) => (float[{y}] y) "
            f"{{ t = ConvTranspose<{attributes}>(x, w, b) y = Relu(t) }}")
    if k % 16 == 0:  # an infinity counts where its window reaches, and nowhere else
        feeds["x"][0, 0].flat[0] = np.inf
        feeds["w"] = np.abs(feeds["w"]) + np.float32(0.01)
    got, want = run(text, feeds, fences=True), reference(text, feeds)
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    close(np.where(np.isinf(got), 0, got), np.where(np.isinf(want), 0, want))


@pytest.mark.parametrize(("attributes", "why"), [
    ("strides=[2,2], dilations=[2,2]", "no dilation"), ("strides=[2,2], group=2", "one group"),
    ("strides=[2,2], output_padding=[1,1]", "of no element"), ("strides=[3,3]", "of no element"),
    ("strides=[2,2], auto_pad=\"SAME_UPPER\"", "pads that are given"),
    ("strides=[2,2], output_shape=[9,9]", "output_shape"),
])
def test_other_transposed_ones_are_refused(attributes: str, why: str) -> None:
    text = ("(float[1,16,4,4] x, float[16,16,2,2] w) => (float[1,K,A,B] y) "
            f"{{ y = ConvTranspose<{attributes}>(x, w) }}")
    made = body(text.replace("K", "32" if "group" in text else "16"))
    with pytest.raises(Decline, match=why):
        plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))


@pytest.mark.parametrize(("lanes", "isa"), [(16, None), (8, Isa("x86-64-v3"))])
@pytest.mark.parametrize(("n", "c", "k", "size", "window", "attributes"), [
    (2, 24, 1, (7, 20), (1, 1), ""), (1, 40, 3, (5, 9), (3, 3), "pads=[1,1,1,1]"), (2, 17, 8, (6, 5), (1, 1), ""),
    (1, 64, 2, (9, 33), (3, 3), "pads=[0,1,2,0], strides=[2,1]"), (1, 16, 5, (6, 40), (3, 2), "dilations=[2,3]"),
])
def test_few_filters_give_a_plain_result(n: int, c: int, k: int, size: tuple[int, int], window: tuple[int, int],
                                         attributes: str, lanes: int, isa: Isa | None) -> None:
    for symbolic in (False, True):
        feeds = feeds_of(n, c, k, size, window)
        feeds["p"] = normal(k, 1, 1, seed=7)
        text = text_of(feeds, attributes, "u = Add(t, p) y = LeakyRelu(u)").replace("b) =>", f"b, float[{k},1,1] p) =>")
        if symbolic:
            text = text.replace(f"[{n},{c},{size[0]},{size[1]}] x", f"[N,{c},H,W] x")
            text = text.replace(f"[{n},{k},A", f"[N,{k},A")
        close(run(text, feeds, lanes=lanes, isa=isa, fences=True, plain_result=True), reference(text, feeds))


@pytest.mark.parametrize(("lanes", "isa"), [(16, None), (8, Isa("x86-64-v3"))])
@pytest.mark.parametrize(("n", "c", "k", "size", "stride"), [
    (2, 24, 1, (5, 20), (2, 2)), (1, 40, 2, (3, 7), (2, 2)), (1, 16, 1, (1, 6), (4, 1)), (2, 70, 3, (4, 1), (1, 2)),
])
def test_few_transposed_filters_give_a_plain_result(n: int, c: int, k: int, size: tuple[int, int],
                                                    stride: tuple[int, int], lanes: int, isa: Isa | None) -> None:
    feeds = {"x": normal(n, c, *size), "w": normal(c, k, *stride, seed=1, scale=c ** -0.5), "b": normal(k, seed=2),
             "r": normal(n, k, *(s * f for s, f in zip(size, stride, strict=True)), seed=4)}
    x, w, r = (",".join(map(str, feeds[name].shape)) for name in "xwr")
    text = (f"(float[{x}] x, float[{w}] w, float[{k}] b, float[{r}] r) => (float[{r}] y) "
            f"{{ t = ConvTranspose<strides=[{stride[0]},{stride[1]}]>(x, w, b) u = Add(t, r) y = Tanh(u) }}")
    close(run(text, feeds, lanes=lanes, isa=isa, fences=True, plain_result=True), reference(text, feeds))


@pytest.mark.parametrize(("shape", "weights", "why"), [
    ("1,16,6,6", "20,16,1,1", "a plain result of 20 numbers"), ("1,96,6,6", "2,96,3,3", "with 96 channels"),
    ("1,16,6,1", "2,16,1,1", "a plain result of 2 numbers"),
])
def test_other_plain_results_are_refused(shape: str, weights: str, why: str) -> None:
    made = body(f"(float[{shape}] x, float[{weights}] w) => (float[1,K,A,B] y) {{ y = Conv(x, w) }}".replace(
        "K", weights.split(",", maxsplit=1)[0]), plain_result=True)
    with pytest.raises(Decline, match=why):
        plan_conv(lower_conv(made.nodes, [made.output], {"": 20}))


@pytest.mark.parametrize("window", ["Conv(q, w)", "Conv<pads=[1,1,1,1]>(q, v)", "ConvTranspose<strides=[2,3]>(q, u)"])
def test_scaled_and_transposed_with_vectors_of_256_bits(window: str) -> None:
    feeds = {"x": normal(2, 20, 9, 9), "s": normal(2, 20, 1, 1, seed=3), "w": normal(24, 20, 1, 1, scale=.2),
             "v": normal(24, 20, 3, 3, scale=.08), "u": normal(20, 12, 2, 3, scale=.2)}
    used = {name: a for name, a in feeds.items() if name in "xs" or f"q, {name})" in window}
    heads = ", ".join(f"float[{','.join(map(str, a.shape))}] {name}" for name, a in used.items())
    text = f"({heads}) => (float[2,{12 if 'Trans' in window else 24},A,B] y) {{ q = Mul(x, s) y = {window} }}"
    close(run(text, used, lanes=8, blocked=("x", "s"), isa=Isa("x86-64-v3"), fences=True), reference(text, used))
