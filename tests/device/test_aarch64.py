"""Kernels for AArch64, run by an emulator: every generator against float64, between guard bytes and against fences.

Regions and attention are compiled for registers of 128 bits, as the product does. Products and convolutions stay with
ONNX Runtime there, because nobody has measured them; their generators' code for 256 bits runs here as pairs of
registers, so that what they emit is known to mean the same on both architectures. Much more runs with
`pytest --isa armv8-a tests/numeric/codegen tests/numeric/attention` (`make aarch64`).
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.numeric.attention import attn_runner
from tests.numeric.attention.test_attn_kernel import close as attention_close
from tests.numeric.codegen.runner import Array, compile_lowered, lower
from tests.numeric.conv_kernels import conv_runner
from tests.numeric.conv_kernels import test_conv_kernel as conv
from tests.numeric.gemm import test_gemm_kernel as gemm
from tests.numeric.quant import quant_runner
from tests.numeric.quant import test_blocks as blocks
from tests.unit.attention.spellings import Spelling
from tests.unit.fusion.parse import model
from tilegraph.codegen.isa import Isa

NEON = Isa("armv8-a")
PAIRS = Isa("armv8-a", (), 256)


def region(text: str, feeds: dict[str, Array], tasks: int = 3, opset: int = 20) -> list[Array]:
    made = model(text, opset)
    kernel = compile_lowered(lower(list(made.graph), list(made.graph.outputs), opset), NEON)
    kernel.check_fences(feeds, tasks)
    return kernel.run(feeds, tasks, 4)


def near(got: Array, want: Array, share: float = 3e-6) -> None:
    assert got.shape == want.shape
    assert float(np.std(want)) > 1e-3, "a constant answer proves nothing"
    assert float(np.abs(got.astype(np.float64) - want).max()) <= share * max(1.0, float(np.abs(want).max()))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def test_softmax_behind_a_bias_and_an_activation() -> None:
    feeds = {"x": normal(7, 70), "b": normal(70, seed=1)}
    (got,) = region("(float[N,70] x, float[70] b) => (float[N,70] y) "
                    "{ t = Add(x, b) u = Gelu(t) y = Softmax<axis=-1>(u) }", feeds)
    t = wide(feeds["x"]) + feeds["b"]
    e = np.exp(t * 0.5 * (1 + np.vectorize(math.erf)(t / math.sqrt(2))))
    near(got, e / e.sum(-1, keepdims=True))


def test_layer_normalisation_and_what_follows_it() -> None:
    feeds = {"x": normal(5, 77), "s": normal(77, seed=1), "b": normal(77, seed=2)}
    (got,) = region("(float[5,77] x, float[77] s, float[77] b) => (float[5,77] y) "
                    "{ t = LayerNormalization<axis=-1>(x, s, b) u = Sigmoid(t) y = Mul(t, u) }", feeds)
    x = wide(feeds["x"])
    t = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * feeds["s"] + feeds["b"]
    near(got, t / (1 + np.exp(-t)), 1e-5)


@pytest.mark.parametrize("dtype", ["float", "int8", "float16"])
def test_transposes(dtype: str) -> None:
    x = (np.arange(3 * 37 * 22) % 251 - 120).reshape(3, 37, 22).astype({"float": "float32"}.get(dtype, dtype))
    (got,) = region(f"({dtype}[3,37,22] x) => ({dtype}[3,22,37] y) {{ y = Transpose<perm=[0,2,1]>(x) }}", {"x": x})
    assert np.array_equal(got, x.transpose(0, 2, 1))


def test_gathers_and_places_that_are_computed() -> None:
    feeds = {"x": normal(9, 24), "i": np.array([[8, 0, -9], [3, -1, 5]], np.int64), "r": normal(24, seed=1)}
    (got,) = region("(float[9,24] x, int64[2,3] i, float[24] r) => (float[2,3,24] y) "
                    "{ t = Gather<axis=0>(x, i) y = Mul(t, r) }", feeds)
    assert np.array_equal(got, feeds["x"][feeds["i"]] * feeds["r"])


def test_integers_wrap_and_divide_towards_zero() -> None:
    a = np.array([2**31 - 1, -2**31, -7, 7, 0, 123456789] * 3, np.int32)
    b = np.array([1, -1, 2, -2, 5, 1000003] * 3, np.int32)
    total, part = region("(int32[18] a, int32[18] b) => (int32[18] s, int32[18] q) "
                         "{ m = Mul(a, b) s = Add(m, b) q = Div(s, b) }", {"a": a, "b": b})
    with np.errstate(over="ignore"):
        wanted = a * b + b
    assert np.array_equal(total, wanted)
    assert np.array_equal(part, np.trunc(wanted.astype(np.float64) / b).astype(np.int64).astype(np.int32))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_conversions_of_16_bits(kind: Any) -> None:
    """Every value to float32; back half to even, at the ends of the range, of denormals and of what is too large."""
    name = np.dtype(kind).name
    values = np.arange(1 << 16, dtype=np.uint16).view(kind)
    (got,) = region(f"({name}[65536] x) => (float[65536] y) {{ t = Cast<to=1>(x) y = Neg(t) }}", {"x": values})
    assert np.array_equal(got, -values.astype(np.float32), equal_nan=True)
    middles = (np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16 | 0x8000).astype(np.uint32).view(np.float32)
    some = [65519.99, 65520, 6e-8, 2.9e-8, 0.0, -0.0, np.inf, -np.inf]
    x = np.concatenate([middles[np.isfinite(middles)], normal(4000) * np.float32(1e-6), normal(4001) * np.float32(7e4),
                        np.array(some, np.float32)])
    (got,) = region(f"(float[{len(x)}] x) => ({name}[{len(x)}] y) "
                    f"{{ t = Neg(x) y = Cast<to={10 if kind is np.float16 else 16}>(t) }}", {"x": -x})
    with np.errstate(over="ignore"):
        assert np.array_equal(got.view(np.uint16), x.astype(kind).view(np.uint16))


def test_special_values() -> None:
    x = normal(7, 19)
    x[np.arange(5), np.arange(3, 8)] = [np.nan, np.inf, -np.inf, -0.0, 1e-40]
    most, clipped, curve = region("(float[7,19] x) => (float[7,1] m, float[7,19] c, float[7,19] t) "
                                  "{ m = ReduceMax<axes=[1]>(x) c = Relu(x) t = Tanh(x) }", {"x": x}, opset=13)
    assert np.array_equal(most, np.fmax.reduce(x, 1, keepdims=True))  # NaN is passed over but in front
    assert np.array_equal(clipped, np.maximum(x, 0), equal_nan=True)
    assert np.allclose(curve, np.tanh(wide(x)), rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("spelling", [
    Spelling(2, 2, 21, 33, 16, 12), Spelling(1, 2, 150, 150, 16, 16, mask="causal-inf"),
    Spelling(1, 2, 150, 150, 16, 16, mask="blocks"), Spelling(1, 3, 1, 90, 24, 16)],
    ids=["dense", "causal", "blocks", "one query"])
def test_attention(spelling: Spelling) -> None:
    compiled, _, graph = attn_runner.compile_attention(spelling.model(), NEON)
    feeds = spelling.feeds()
    attention_close(attn_runner.run(compiled, graph, feeds, 2, 4), spelling.answer(feeds), feeds)
    attn_runner.check_fences(compiled, graph, feeds, 2)


@pytest.mark.parametrize("m", [1, 23])
def test_products(m: int) -> None:
    made = gemm.compiled("(float[M,100] x, float[100,77] w, float[77] b) => (float[M,77] y) "
                         "{ t = MatMul(x, w) u = Add(t, b) y = Tanh(u) }", PAIRS)
    feeds = {"x": normal(m, 100), "w": normal(100, 77, seed=1) * np.float32(0.1), "b": normal(77, seed=2)}
    gemm.close(gemm.run(made, feeds), np.tanh(wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"]))


def test_products_with_matrices_of_4_bits() -> None:
    made = quant_runner.compiled(blocks.shaped("B", 96, 50, 4, 32, 0, True), PAIRS)
    feeds = {"x": normal(18, 96), **blocks.weights(96, 50, 4, 32, True)}
    blocks.close(quant_runner.run(made, feeds), -(wide(feeds["x"]) @ blocks.matrix(feeds, 96, 4, 32)))


@pytest.mark.parametrize(("c", "k", "size", "kernel", "attributes", "groups"), [
    (24, 40, (11, 17), (3, 3), "pads=[1,1,1,1], strides=[2,2]", 1),
    (64, 64, (14, 14), (3, 3), "pads=[1,1,1,1]", 1),
    (32, 32, (9, 11), (3, 3), "pads=[1,1,1,1]", 32),
], ids=["direct", "winograd", "depthwise"])
def test_convolutions(c: int, k: int, size: tuple[int, ...], kernel: tuple[int, ...], attributes: str,
                      groups: int) -> None:
    feeds = conv.feeds_of(1, c, k, size, kernel, groups)
    text = conv.text_of(feeds, attributes, groups=groups)
    conv.close(conv_runner.run(text, feeds, lanes=8, isa=PAIRS, fences=True), conv_runner.reference(text, feeds))
