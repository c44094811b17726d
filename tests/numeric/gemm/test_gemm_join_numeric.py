"""Products of the same rows with results of their own, in one kernel: against float64, and each reason to be none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.codegen.runner import Array
from tests.numeric.gemm.test_gemm_bfloat16 import CASTS, made, needs_bfloat16, rounded
from tests.numeric.gemm.test_gemm_kernel import close, compiled, normal, results, wide
from tilegraph.codegen.isa import Isa
from tilegraph.ops.prims import Decline


def feeds_of(rows: tuple[int, ...], k: int, *widths: int) -> dict[str, Array]:
    """Rows x, matrices u, v, w of those widths (v transposed), and a bias b of the first one's."""
    u, v, w = (normal(k, n, seed=s, scale=k**-0.5) for s, n in enumerate(widths, 1))
    return {"x": normal(*rows, k), "u": u, "v": np.ascontiguousarray(v.T), "w": w, "b": normal(widths[0], seed=9)}


@pytest.mark.parametrize(("rows", "k", "widths", "isa"), [
    ("B", 70, (96, 32, 32), None),  # fewer heads of keys and values
    ("19", 400, (77, 17, 130), None),  # each ends in a panel of its own that is not full
    ("19", 400, (77, 17, 130), Isa("x86-64-v3")),
    ("16", 2800, (48, 40, 20), None),  # deep: sums wait in the scratch
])
def test_three_results(rows: str, k: int, widths: tuple[int, int, int], isa: Isa | None) -> None:
    """A bias and an activation, a transposed matrix, a plain one."""
    a, b, c = widths
    kernel = compiled(f"(float[{rows},{k}] x, float[{k},{a}] u, float[{b},{k}] v, float[{k},{c}] w, float[{a}] b) => "
                      f"(float[{rows},{a}] p, float[{rows},{b}] q, float[{rows},{c}] r) {{ s = MatMul(x, u) "
                      "t = Add(s, b) p = Tanh(t) q = Gemm<transB=1, alpha=0.5>(x, v) r = MatMul(x, w) }", isa)
    assert len(kernel.kernel.slots) == 3, "rows, the matrices as one, the bias"
    for m in (1, 5, 8, 27, 259, 0) if rows == "B" else (int(rows),):
        feeds = feeds_of((m,), k, a, b, c)
        x, u, v, w = (wide(feeds[name]) for name in "xuvw")
        found = results(kernel, feeds, tasks=3)
        for got, want in zip(found, (np.tanh(x @ u + feeds["b"]), x @ v.T * 0.5, x @ w), strict=True):
            if m:
                close(got, want)
            else:
                assert got.shape == want.shape


def test_heads() -> None:
    """Each result is stored in an order of its own, and rows are two loops in some and one in others."""
    kernel = compiled("(float[2,11,64] x, float[64,96] u, float[64,64] v, float[64,32] w) => "
                      "(float[2,3,11,32] p, float[2,2,11,32] q, float[22,32] r) { i = Constant<value = int64[4] "
                      "{2, 11, 3, 32}>() j = Constant<value = int64[4] {2, 11, 2, 32}>() l = Constant<value = int64[2] "
                      "{22, 32}>() a = MatMul(x, u) b = Reshape(a, i) p = Transpose<perm=[0, 2, 1, 3]>(b) "
                      "c = MatMul(x, v) d = Reshape(c, j) q = Transpose<perm=[0, 2, 1, 3]>(d) "
                      "e = MatMul(x, w) r = Reshape(e, l) }")
    feeds = feeds_of((2, 11), 64, 96, 64, 32)
    feeds["v"] = np.ascontiguousarray(feeds["v"].T)
    x = wide(feeds["x"])
    p, q, r = results(kernel, feeds, tasks=5)
    close(p, (x @ wide(feeds["u"])).reshape(2, 11, 3, 32).transpose(0, 2, 1, 3))
    close(q, (x @ wide(feeds["v"])).reshape(2, 11, 2, 32).transpose(0, 2, 1, 3))
    close(r, (x @ wide(feeds["w"])).reshape(22, 32))


@needs_bfloat16
def test_bfloat16() -> None:
    kernel = made("(float[21,70] x, float[70,50] w, float[70,33] v) => (float[21,50] p, float[21,33] q) { CASTS "
                  "t = MatMul(c, e) p = Relu(t) f = Cast<to=16>(v) g = Cast<to=1>(f) h = Cast<to=16>(x) "
                  "i = Cast<to=1>(h) q = MatMul(i, g) }".replace("CASTS", CASTS))
    feeds = {"x": normal(21, 70), "w": normal(70, 50, seed=1, scale=0.12), "v": normal(70, 33, seed=2, scale=0.12)}
    x, w, v = (rounded(feeds[name]) for name in "xwv")
    p, q = results(kernel, feeds, tasks=3)
    close(p, np.maximum(x @ w, 0))
    close(q, x @ v)


TWO = "(float[8,64] x, float[8,64] z, float[64,32] u, float[64,32] v, float[32] b) => (float[8,32] p, float[8,32] q) "


@pytest.mark.parametrize(("body", "reason"), [
    ("p = MatMul(x, u) q = MatMul(z, v)", "different rows"),
    ("p = MatMul(x, u) q = MatMul(x, u)", "one matrix"),
    ("p = MatMul(x, u) m = Mul(v, v) q = MatMul(x, m)", "with a matrix of floats"),
    ("s = MatMul(x, u) t = MatMul(x, v) p = Mul(s, t) q = MatMul(x, v)", "one product each"),
    (f"{CASTS.replace('(w)', '(u)')} p = MatMul(c, e) q = MatMul(x, v)", "different rows or precisions"),
])
def test_no_kernel(body: str, reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        compiled(f"{TWO} {{ {body} }}")


def test_a_matrix_that_the_other_epilogue_reads() -> None:
    with pytest.raises(Decline, match="the epilogue reads the matrix too"):
        compiled("(float[32,64] x, float[64,32] u, float[64,64] v) => (float[32,32] p, float[32,64] q) "
                 "{ p = MatMul(x, u) s = MatMul(x, v) h = Constant<value = int64[2] {32, 64}>() t = Reshape(u, h) "
                 "q = Add(s, t) }")
