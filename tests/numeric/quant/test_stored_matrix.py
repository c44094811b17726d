"""Products with matrices computed from constants, against float64: how they are stored, sizes, instruction sets."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.numeric.quant.quant_runner import Array, compiled, run
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.prims import Decline

CAST = "f = Cast<to=1>(q) w = Mul(f, s)"


def close(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    assert float(np.std(want)) > 0.1, "a constant answer proves nothing"
    assert float(np.abs(got - want).max()) <= 4e-6 * max(1.0, float(np.abs(want).max()))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def constants(k: int, n: int, scale: tuple[int, ...], dtype: type = np.int8) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    found = {"q": rng.integers(low, high + 1, (k, n)).astype(dtype),
             "s": (rng.uniform(0.5, 1.5, scale) / (high * k**0.5)).astype(np.float32),
             "z": rng.integers(low, high + 1, scale).astype(dtype)}
    return found


def wide(a: Array) -> Array:
    return a.astype(np.float64)


@pytest.mark.parametrize("m", [1, 3, 8, 15, 16, 37, 260])
@pytest.mark.parametrize(("k", "n"), [(20, 20), (64, 48), (390, 97)])
def test_cast_and_scale(m: int, k: int, n: int) -> None:
    made = compiled(f"(float[{m},{k}] x, int8[{k},{n}] q, float[1,{n}] s, float[{n}] b) => (float[{m},{n}] y) "
                    f"{{ {CAST} t = MatMul(x, w) u = Add(t, b) y = Relu(u) }}")
    feeds = {"x": normal(m, k), "b": normal(n, seed=2), **constants(k, n, (1, n))}
    want = wide(feeds["x"]) @ (wide(feeds["q"]) * feeds["s"]) + feeds["b"]
    close(run(made, feeds), np.maximum(want, 0))


def test_symbolic_rows() -> None:
    made = compiled("(float[B,S,70] x, int8[70,50] q, float[1,50] s) => (float[B,S,50] y) "
                    f"{{ {CAST} y = MatMul(x, w) }}")
    for b, s in ((1, 1), (2, 4), (1, 15), (1, 16), (3, 100)):
        feeds = {"x": normal(b, s, 70), **constants(70, 50, (1, 50))}
        close(run(made, feeds, tasks=3), wide(feeds["x"]) @ (wide(feeds["q"]) * feeds["s"]))


@pytest.mark.parametrize("m", [2, 20])
@pytest.mark.parametrize(("attrs", "scale"), [("", (1,)), ("axis=1", (50,)), ("axis=0", (64,)),
                                              ("axis=0, block_size=32", (2, 50)), ("axis=0, block_size=24", (3, 50))])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_dequantize(kind: str, attrs: str, scale: tuple[int, ...], m: int) -> None:
    shape = list(scale)
    made = compiled(f"(float[{m},64] x, {kind}[64,50] q, float{shape} s, {kind}{shape} z) => (float[{m},50] y) "
                    f"{{ w = DequantizeLinear<{attrs}>(q, s, z) y = MatMul(x, w) }}".replace("<>", ""))
    feeds = {"x": normal(m, 64), **constants(64, 50, scale, np.dtype(kind).type)}
    close(run(made, feeds), wide(feeds["x"]) @ spread(feeds, attrs))


@pytest.mark.parametrize("m", [1, 20])
@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize(("k", "block"), [(64, 32), (71, 16)])
@pytest.mark.parametrize("turned", [False, True])
def test_four_bits(kind: str, k: int, block: int, m: int, turned: bool) -> None:
    """Two in a byte, also where an odd number of rows or of blocks leaves half of one."""
    count, low = -(-k // block), -8 if kind == "int4" else 0
    shape, scale = ([50, k], [50, count]) if turned else ([k, 50], [count, 50])
    made = compiled(f"(float[{m},{k}] x, {kind}{shape} q, float{scale} s, {kind}{scale} z) => (float[{m},50] y) "
                    f"{{ w = DequantizeLinear<axis={int(turned)}, block_size={block}>(q, s, z) "
                    f"y = Gemm<transB={int(turned)}>(x, w) }}")
    rng = np.random.default_rng(1)
    feeds = {"x": normal(m, k), "s": rng.uniform(0.02, 0.1, scale).astype(np.float32)}
    for name, extents in (("q", shape), ("z", scale)):
        feeds[name] = rng.integers(low, low + 16, extents).astype(getattr(ml_dtypes, kind))
    q, s, z = (wide(feeds[name]).T if turned else wide(feeds[name]) for name in "qsz")
    s, z = (np.repeat(a, block, 0)[:k] for a in (s, z))
    close(run(made, feeds), wide(feeds["x"]) @ ((q - z) * s))


def test_four_bits_outside_of_a_matrix() -> None:
    with pytest.raises(Decline, match="the epilogue reads int4"):
        compiled("(float[8,64] x, int8[64,50] q, float[50] s, int4[50] b, float[50] e) => (float[8,50] y) "
                 "{ w = DequantizeLinear<axis=1>(q, s) t = MatMul(x, w) o = DequantizeLinear<axis=0>(b, e) "
                 "y = Add(t, o) }")


def spread(feeds: dict[str, Array], attrs: str) -> Array:
    """The matrix in float64."""
    q, s, z = wide(feeds["q"]), wide(feeds["s"]), wide(feeds["z"])
    if "block_size" in attrs:
        size = int(attrs.rsplit("=", 1)[1])
        s, z = (np.repeat(a, size, 0)[:len(q)] for a in (s, z))
    elif attrs == "axis=0":
        s, z = s[:, None], z[:, None]
    return (q - z) * s


@pytest.mark.parametrize("m", [3, 16])
def test_by_column(m: int) -> None:
    made = compiled(f"(float[{m},64] x, int8[50,64] q, float[50] s, int8[50] z) => (float[{m},50] y) "
                    "{ d = DequantizeLinear<axis=0>(q, s, z) w = Transpose(d) y = MatMul(x, w) }")
    feeds = {"x": normal(m, 64), **constants(50, 64, (50,))}
    close(run(made, feeds), wide(feeds["x"]) @ spread(feeds, "axis=0").T)


@pytest.mark.parametrize("m", [3, 16])
def test_half(m: int) -> None:
    made = compiled(f"(float[{m},64] x, float16[64,50] h) => (float[{m},50] y) "
                    "{ w = Cast<to=1>(h) y = MatMul(x, w) }")
    feeds = {"x": normal(m, 64), "h": (normal(64, 50, seed=1) / 8).astype(np.float16)}
    close(run(made, feeds), wide(feeds["x"]) @ wide(feeds["h"]))


@pytest.mark.parametrize("base", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("m", [5, 23])
def test_instruction_sets(base: str, m: int) -> None:
    if base == "x86-64-v4" and host().vector_bits < 512:
        pytest.skip("this machine has no AVX-512")
    made = compiled(f"(float[{m},100] x, int8[100,77] q, float[1,77] s) => (float[{m},77] y) "
                    f"{{ {CAST} y = MatMul(x, w) }}", Isa(base))
    feeds = {"x": normal(m, 100), **constants(100, 77, (1, 77))}
    close(run(made, feeds), wide(feeds["x"]) @ (wide(feeds["q"]) * feeds["s"]))


@pytest.mark.parametrize("body", [
    f"{CAST} t = MatMul(x, w) y = Add(t, s)",  # packed for the matrix, so it cannot be read as it is
])
def test_constants_read_in_two_ways(body: str) -> None:
    with pytest.raises(Decline, match="reads the matrix too"):
        compiled(f"(float[8,64] x, int8[64,50] q, float[1,50] s) => (float[8,50] y) {{ {body} }}")


def test_nothing_of_the_matrix_s_size() -> None:
    with pytest.raises(Decline, match="no constant has an element for each"):
        compiled("(float[8,64] x, int8[64,1] q, float[1,50] s) => (float[8,50] y) "
                 f"{{ {CAST} y = MatMul(x, w) }}")
