"""Products of bfloat16: the kernel computes exactly what the Casts of its body say, with sums in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.numeric.codegen.runner import Array
from tests.numeric.gemm.test_gemm_kernel import Compiled, close, compiled, normal, run, wide
from tilegraph.codegen.gemm import bfloat16
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.prims import Decline

needs_bfloat16 = pytest.mark.skipif(bfloat16.FEATURE not in host().features, reason="this machine has no AVX512-BF16")
CASTS = "a = Cast<to=16>(x) c = Cast<to=1>(a) d = Cast<to=16>(w) e = Cast<to=1>(d)"


def made(text: str) -> Compiled:
    return compiled(text.replace("CASTS", CASTS), Isa("x86-64-v4", (bfloat16.FEATURE,)))


def rounded(a: Array) -> Array:
    return wide(a.astype(ml_dtypes.bfloat16))


@needs_bfloat16
@pytest.mark.parametrize("m", [1, 3, 8, 23, 259])
@pytest.mark.parametrize(("k", "n"), [(1, 20), (2, 48), (65, 47), (770, 97), (2048, 32)])
def test_sizes(m: int, k: int, n: int) -> None:
    kernel = made(f"(float[{m},{k}] x, float[{k},{n}] w, float[{n}] b) => (float[{m},{n}] y) "
                  "{ CASTS t = MatMul(c, e) y = Add(t, b) }")
    feeds = {"x": normal(m, k), "w": normal(k, n, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
    want = rounded(feeds["x"]) @ rounded(feeds["w"]) + feeds["b"]
    exact = wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"]
    if m * n > 400:
        assert np.abs(want - exact).max() > 1e-3, "the test cannot tell the precisions apart"
    close(run(kernel, feeds, tasks=3), want)


@needs_bfloat16
def test_symbolic_rows() -> None:
    kernel = made("(float[B,S,70] x, float[70,150] w, float[B,S,150] r) => (float[B,S,150] y) "
                  "{ CASTS t = MatMul(c, e) y = Add(r, t) }")
    for b, s in ((1, 1), (2, 5), (3, 100), (1, 300), (0, 4)):
        feeds = {"x": normal(b, s, 70), "w": normal(70, 150, seed=1, scale=0.12), "r": normal(b, s, 150, seed=3)}
        got = run(kernel, feeds, tasks=4)
        if b:
            close(got, rounded(feeds["x"]) @ rounded(feeds["w"]) + feeds["r"])
        else:
            assert got.shape == (0, 4, 150)


@needs_bfloat16
def test_two_matrices() -> None:
    """Rows are converted once for both."""
    kernel = made("(float[21,70] x, float[70,50] w, float[70,50] v) => (float[21,50] y) { CASTS t = MatMul(c, e) "
                  "f = Cast<to=16>(v) g = Cast<to=1>(f) h = MatMul(c, g) r = Relu(h) y = Mul(t, r) }")
    feeds = {"x": normal(21, 70), "w": normal(70, 50, seed=1, scale=0.12), "v": normal(70, 50, seed=2, scale=0.12)}
    x, w, v = (rounded(feeds[name]) for name in "xwv")
    close(run(kernel, feeds, tasks=3), (x @ w) * np.maximum(x @ v, 0))


@needs_bfloat16
@pytest.mark.parametrize("text", [
    "(float[9,70] x, float[50,70] w) => (float[9,50] y) { CASTS y = Gemm<transB=1>(c, e) }",
    "(float[3,3,70] x, float[50,70] w) => (float[3,3,50] y) { CASTS y = Einsum<equation=\"bsk,jk->bsj\">(c, e) }",
])
def test_transposed(text: str) -> None:
    kernel = made(text)
    shape = (9, 70) if "Gemm" in text else (3, 3, 70)
    feeds = {"x": normal(*shape), "w": normal(50, 70, seed=1, scale=0.12)}
    close(run(kernel, feeds), rounded(feeds["x"]) @ rounded(feeds["w"]).T)


@needs_bfloat16
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_special_values(value: float) -> None:
    """3.4e38 rounds to infinity, as a Cast does."""
    kernel = made("(float[9,70] x, float[70,50] w) => (float[9,50] y) { CASTS y = MatMul(c, e) }")
    feeds = {"x": normal(9, 70), "w": normal(70, 50, seed=1)}
    feeds["x"][4, 3] = value
    feeds["w"][3, 7] = 0.0
    with np.errstate(all="ignore"):
        want = (rounded(feeds["x"]) @ rounded(feeds["w"])).astype(np.float32)
    got = run(kernel, feeds)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(np.isposinf(got), np.isposinf(want))
    assert np.array_equal(np.isneginf(got), np.isneginf(want))


def test_one_rounded_operand_is_no_product_of_bfloat16() -> None:
    with pytest.raises(Decline, match="the left operand is computed inside the kernel"):
        compiled("(float[9,70] x, float[70,50] w) => (float[9,50] y) "
                 "{ d = Cast<to=16>(x) e = Cast<to=1>(d) y = MatMul(e, w) }")


def test_narrow_vectors_are_declined() -> None:
    with pytest.raises(Decline, match="need avx512bf16"):
        compiled(f"(float[9,70] x, float[70,50] w) => (float[9,50] y) {{ {CASTS} y = MatMul(c, e) }}",
                 Isa("x86-64-v3"))
