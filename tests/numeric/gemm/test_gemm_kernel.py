"""GEMM kernels against float64: sizes with tails, symbolic rows, epilogues, layouts of the result, instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.codegen.runner import Array, Compiled, loaded
from tests.unit.fusion.parse import model
from tilegraph.codegen.gemm import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.compiler.packing import pack_columns
from tilegraph.ops.gemm import lower_gemm, plan_gemm
from tilegraph.ops.lower import prims_of
from tilegraph.ops.prims import Decline, Input


def compiled(text: str, isa: Isa | None = None) -> Compiled:
    graph = model(text)
    lowered = lower_gemm(list(graph.graph), list(graph.graph.outputs), {"": 20})
    isa = isa or host()
    made = generate(plan_gemm(lowered), "tg_test", isa.vector_bits)
    return Compiled(lowered, None, made.kernel, *loaded(made, isa))  # type: ignore[arg-type]


def run(made: Compiled, feeds: dict[str, Array], tasks: int = 2, offset: int = 4) -> Array:
    return results(made, feeds, tasks, offset)[0]


def results(made: Compiled, feeds: dict[str, Array], tasks: int = 2, offset: int = 4) -> list[Array]:
    """`feeds` hold matrices as the model has them. The runner binds sizes to the shapes it is given, so what is packed
    goes in flat under the original's name."""
    names = {slot: value.name for slot, value in made.lowered.inputs}
    shapes = {p.slot: tuple(d.as_int() or 0 for d in p.shape) for p in prims_of(made.lowered) if isinstance(p, Input)}
    packed = {names[how.slot]: np.concatenate(
        [pack_columns(feeds[names[slot]].reshape(shapes[slot]), how.panel, transposed, how.dtype)
         for slot, transposed in how.matrices]) for how in made.kernel.packed}
    known = {**feeds, **{name: a.reshape(-1, *(1,) * (feeds[name].ndim - 1)) for name, a in packed.items()}}
    return made.run(known, tasks, offset)


def close(got: Array, want: Array) -> None:
    """Sums of products of size 1 over k, scaled to size 1."""
    assert got.shape == want.shape
    assert float(np.std(want)) > 0.1, "a constant answer proves nothing"
    assert float(np.abs(got - want).max()) <= 4e-6 * max(1.0, float(np.abs(want).max()))


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def wide(a: Array) -> Array:
    return a.astype(np.float64)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 8, 15, 256, 259])
@pytest.mark.parametrize(("k", "n"), [(1, 20), (2, 2), (5, 47), (64, 48), (383, 63), (384, 97), (900, 64)])
def test_sizes(m: int, k: int, n: int) -> None:
    made = compiled(f"(float[{m},{k}] x, float[{k},{n}] w, float[{n}] b) => (float[{m},{n}] y) "
                    "{ t = MatMul(x, w) y = Add(t, b) }")
    feeds = {"x": normal(m, k), "w": normal(k, n, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
    want = wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"]
    close(run(made, feeds), want)


@pytest.mark.parametrize("base", ["x86-64-v3", "x86-64-v4"])
def test_instruction_sets(base: str) -> None:
    if base == "x86-64-v4" and host().vector_bits < 512:
        pytest.skip("this machine has no AVX-512")
    made = compiled("(float[23,100] x, float[100,77] w) => (float[23,77] y) { t = MatMul(x, w) y = Tanh(t) }",
                    Isa(base))
    feeds = {"x": normal(23, 100), "w": normal(100, 77, seed=1, scale=0.1)}
    close(run(made, feeds), np.tanh(wide(feeds["x"]) @ wide(feeds["w"])))


def test_no_fused_multiply_add() -> None:
    with pytest.raises(Decline, match="256 bits"):
        compiled("(float[8,64] x, float[64,64] w) => (float[8,64] y) { y = MatMul(x, w) }", Isa("x86-64-v2"))


def test_symbolic_rows_and_residual() -> None:
    made = compiled("(float[B,S,70] x, float[70,50] w, float[50] b, float[B,S,50] r) => (float[B,S,50] y) "
                    "{ t = MatMul(x, w) u = Add(b, t) y = Add(r, u) }")
    for b, s in ((1, 1), (2, 5), (3, 100), (1, 300)):
        feeds = {"x": normal(b, s, 70), "w": normal(70, 50, seed=1, scale=0.12), "b": normal(50, seed=2),
                 "r": normal(b, s, 50, seed=3)}
        close(run(made, feeds, tasks=3), wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"] + feeds["r"])


@pytest.mark.parametrize("n", [32, 48, 100])
@pytest.mark.parametrize("k", [3, 65, 390])
def test_few_rows(k: int, n: int) -> None:
    """One kernel for any of them, down to none; sums are kept in several chains, whose number must not matter."""
    made = compiled(f"(float[B,{k}] x, float[{k},{n}] w, float[{n}] b) => (float[B,{n}] y) "
                    "{ t = MatMul(x, w) u = Add(t, b) y = Relu(u) }")
    for m in (1, 2, 3, 4, 5, 6, 7, 9, 15, 263, 0):
        feeds = {"x": normal(m, k), "w": normal(k, n, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
        want = np.maximum(wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"], 0)
        if m:
            close(run(made, feeds, tasks=3), want)
        else:
            assert run(made, feeds).shape == want.shape


@pytest.mark.parametrize(("rows", "k", "n"), [("B", 2740, 97), ("19", 3072, 48)])
def test_deep_panels(rows: str, k: int, n: int) -> None:
    """Sums of a block of rows wait in the scratch while it is multiplied part by part."""
    made = compiled(f"(float[{rows},{k}] x, float[{k},{n}] w, float[{n}] b) => (float[{rows},{n}] y) "
                    "{ t = MatMul(x, w) y = Add(t, b) }")
    assert made.kernel.scratch.evaluate({"B": 40}) > 0
    for m in (5, 8, 83) if rows == "B" else (int(rows),):
        feeds = {"x": normal(m, k), "w": normal(k, n, seed=1, scale=k**-0.5), "b": normal(n, seed=2)}
        close(run(made, feeds, tasks=3), wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"])


def test_transposed_gemm() -> None:
    made = compiled("(float[9,70] x, float[50,70] w, float[50] b) => (float[9,50] y) { y = Gemm<transB=1>(x, w, b) }")
    feeds = {"x": normal(9, 70), "w": normal(50, 70, seed=1, scale=0.12), "b": normal(50, seed=2)}
    close(run(made, feeds), wide(feeds["x"]) @ wide(feeds["w"]).T + feeds["b"])


def test_gemm_with_factors() -> None:
    made = compiled("(float[9,70] x, float[70,50] w, float[9,1] b) => (float[9,50] y) "
                    "{ y = Gemm<alpha=0.5, beta=-3.0>(x, w, b) }")
    feeds = {"x": normal(9, 70), "w": normal(70, 50, seed=1, scale=0.12), "b": normal(9, 1, seed=2)}
    close(run(made, feeds), 0.5 * (wide(feeds["x"]) @ wide(feeds["w"])) - 3.0 * feeds["b"])


def test_a_bias_times_0_is_not_read() -> None:
    made = compiled("(float[9,70] x, float[70,50] w, float[50] b) => (float[9,50] y) { y = Gemm<beta=0.0>(x, w, b) }")
    assert [value.name for _, value in made.lowered.inputs] == ["x", "w"]


def test_one_row_transposed() -> None:
    made = compiled("(float[70,1] x, float[70,50] w) => (float[1,50] y) { y = Gemm<transA=1>(x, w) }")
    feeds = {"x": normal(70, 1), "w": normal(70, 50, seed=1, scale=0.12)}
    close(run(made, feeds), wide(feeds["x"]).T @ wide(feeds["w"]))


def test_a_vector() -> None:
    made = compiled("(float[70] x, float[70,50] w) => (float[50] y) { y = MatMul(x, w) }")
    feeds = {"x": normal(70), "w": normal(70, 50, seed=1, scale=0.12)}
    close(run(made, feeds), wide(feeds["x"]) @ wide(feeds["w"]))


@pytest.mark.parametrize(("equation", "x", "w", "y"), [
    ("bsd,dhk->bshk", "2,5,64", "64,3,32", "2,5,3,32"),  # projections of Flax
    ("bsd,dhk->bhsk", "2,5,64", "64,3,32", "2,3,5,32"),
    ("bshk,hkd->bsd", "2,5,3,32", "3,32,64", "2,5,64"),
    ("bsk,jk->bsj", "2,5,64", "48,64", "2,5,48"),
    ("ik,kj", "5,64", "64,48", "5,48"),
    ("k,kj->j", "64", "64,48", "48"),
    ("B k, k j -> B j", "B,64", "64,48", "B,48"),
])
def test_einsum(equation: str, x: str, w: str, y: str) -> None:
    made = compiled(f"(float[{x}] x, float[{w}] w) => (float[{y}] y) {{ y = Einsum<equation=\"{equation}\">(x, w) }}")
    sizes = [[3 if d == "B" else int(d) for d in dims.split(",")] for dims in (x, w)]
    feeds = {"x": normal(*sizes[0]), "w": normal(*sizes[1], seed=1, scale=0.12)}
    close(run(made, feeds), np.einsum(equation, wide(feeds["x"]), wide(feeds["w"])))


def test_heads_are_split_by_the_stores() -> None:
    made = compiled("(float[2,11,64] x, float[64,96] w, float[96] b) => (float[2,3,11,32] y) "
                    "{ s = Constant<value = int64[4] {2, 11, 3, 32}>() t = MatMul(x, w) u = Add(t, b) "
                    "v = Reshape(u, s) y = Transpose<perm=[0, 2, 1, 3]>(v) }")
    feeds = {"x": normal(2, 11, 64), "w": normal(64, 96, seed=1, scale=0.12), "b": normal(96, seed=2)}
    want = wide(feeds["x"]) @ wide(feeds["w"]) + feeds["b"]
    close(run(made, feeds), want.reshape(2, 11, 3, 32).transpose(0, 2, 1, 3))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(value: float) -> None:
    made = compiled("(float[9,70] x, float[70,50] w) => (float[9,50] y) { y = MatMul(x, w) }")
    feeds = {"x": normal(9, 70), "w": normal(70, 50, seed=1)}
    feeds["x"][4, 3] = value
    feeds["w"][3, 7] = 0.0
    with np.errstate(all="ignore"):
        want = (wide(feeds["x"]) @ wide(feeds["w"])).astype(np.float32)
    got = run(made, feeds)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(np.isposinf(got), np.isposinf(want))
    assert np.array_equal(np.isneginf(got), np.isneginf(want))


@pytest.mark.parametrize(("rows", "k", "n", "isa"), [
    ("23", 100, 77, None), ("23", 100, 77, Isa("x86-64-v3")), ("B", 70, 64, None), ("19", 1400, 32, None)])
def test_two_matrices(rows: str, k: int, n: int, isa: Isa | None) -> None:
    """SwiGLU: rows are multiplied with both, and neither product is stored; 1400 steps of both are done by parts."""
    made = compiled(f"(float[{rows},{k}] x, float[{k},{n}] u, float[{n},{k}] g, float[{n}] b) => (float[{rows},{n}] y) "
                    "{ t = MatMul(x, u) h = Gemm<transB=1>(x, g, b) s = Sigmoid(h) a = Mul(h, s) y = Mul(a, t) }", isa)
    assert len(made.kernel.packed) == 2
    for m in (1, 7, 8, 83, 259) if rows == "B" else (int(rows),):
        feeds = {"x": normal(m, k), "u": normal(k, n, seed=1, scale=k**-0.5), "g": normal(n, k, seed=2, scale=k**-0.5),
                 "b": normal(n, seed=3)}
        gate = wide(feeds["x"]) @ wide(feeds["g"]).T + feeds["b"]
        close(run(made, feeds, tasks=3), wide(feeds["x"]) @ wide(feeds["u"]) * gate / (1 + np.exp(-gate)))


@pytest.mark.parametrize(("text", "reason"), [
    ("(float[8,64] x, float[8,64] z, float[64,32] u, float[64,32] g) => (float[8,32] y) "
     "{ t = MatMul(x, u) h = MatMul(z, g) y = Mul(h, t) }", "different rows"),
    ("(float[8,64] x, float[64,32] u, float[64,1] g) => (float[8,32] y) "
     "{ t = MatMul(x, u) h = MatMul(x, g) y = Mul(h, t) }", "more than one place|more than one shape"),
    ("(float[8,64] x, float[64,32] u) => (float[8,32] y) "
     "{ t = MatMul(x, u) h = MatMul(x, u) y = Mul(h, t) }", "one matrix"),
    ("(float[8,64] x, float[64,32] u, float[64,32] g) => (float[8,32] y) "
     "{ t = MatMul(x, u) q = Mul(g, g) h = MatMul(x, q) y = Mul(h, t) }", "not all are with matrices of floats"),
])
def test_two_matrices_that_are_no_kernel(text: str, reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        compiled(text)
