"""MatMulInteger: the same integers as numpy, for every pair of dtypes, zero point, size, rows and instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numeric.quant.quant_runner import Array, compiled, run
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.prims import Decline

PAIRS = [(a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")]


def integers(dtype: str, *shape: int, seed: int = 0) -> Array:
    limits = np.iinfo(dtype)
    found = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)
    return np.asarray(found)


def exact(feeds: dict[str, Array]) -> Array:
    wide = {k: v.astype(np.int64) for k, v in feeds.items()}
    x, w = wide["x"] - wide.get("p", np.int64(0)), wide["w"] - wide.get("z", np.int64(0))
    return (x @ w).astype(np.int32)


def check(made: object, feeds: dict[str, Array], want: Array | None = None) -> None:
    got = run(made, feeds)  # type: ignore[arg-type]
    want = exact(feeds) if want is None else want
    assert len(np.unique(want)) > min(want.size, 8) // 2
    assert np.array_equal(got, want)


def text(a: str, b: str, m: int | str, k: int, n: int, more: str, names: str) -> str:
    return f"({a}[{m},{k}] x, {b}[{k},{n}] w{more}) => (int32[{m},{n}] y) {{ y = MatMulInteger({names}) }}"


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("m", [1, 3, 8, 19])
@pytest.mark.parametrize(("k", "n"), [(16, 16), (67, 50), (129, 97)])
def test_zero_points(a: str, b: str, m: int, k: int, n: int) -> None:
    """Computed ones; of the matrix, one for each column."""
    made = compiled(text(a, b, m, k, n, f", {a} p, {b}[{n}] z", "x, w, p, z"))
    check(made, {"x": integers(a, m, k), "w": integers(b, k, n, seed=1), "p": integers(a, 1, seed=2).reshape(()),
                 "z": integers(b, n, seed=3)})


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize(("more", "names", "present"), [
    ("", "x, w", ""), (", A p", "x, w, p", "p"), (", B z", "x, w, \"\", z", "z"), (", B[40] z", "x, w, \"\", z", "z"),
])
def test_absent_zero_points(a: str, b: str, more: str, names: str, present: str) -> None:
    made = compiled(text(a, b, 5, 40, 40, more.replace("A", a).replace("B", b), names.replace('""', "")))
    feeds = {"x": integers(a, 5, 40), "w": integers(b, 40, 40, seed=1)}
    if present:
        shape = (40,) if "[40]" in more else (1,)
        value = integers(a if present == "p" else b, *shape, seed=2)
        feeds[present] = value if "[40]" in more else value.reshape(())
    check(made, feeds)


@pytest.mark.parametrize("isa", ["x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4", "x86-64-v4+avx512vnni"])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_instruction_sets(isa: str, a: str, b: str) -> None:
    """The largest products, which saturate where 16 bits are in between."""
    wanted = Isa.parse(isa)
    if wanted.vector_bits > host().vector_bits or not set(wanted.features) <= set(host().features):
        pytest.skip(f"this machine has no {isa}")
    made = compiled(text(a, b, 9, 100, 77, f", {a} p, {b}[77] z", "x, w, p, z"), wanted)
    assert made.kernel.features == wanted.features
    feeds = {"x": integers(a, 9, 100), "w": integers(b, 100, 77, seed=1), "p": integers(a, 1, seed=2).reshape(()),
             "z": integers(b, 77, seed=3)}
    feeds["x"][:3], feeds["w"][:, :9] = np.iinfo(a).max, np.iinfo(b).max
    feeds["x"][3:6], feeds["w"][:, 9:18] = np.iinfo(a).min, np.iinfo(b).min
    check(made, feeds)


def test_symbolic_rows_and_sums_that_wrap() -> None:
    """33 025 products of 255 * 255 are just below 2^31, 40 000 are above."""
    made = compiled("(uint8[B,S,40000] x, uint8[40000,16] w) => (int32[B,S,16] y) { y = MatMulInteger(x, w) }")
    for b, s in ((1, 1), (2, 5)):
        feeds = {"x": integers("uint8", b, s, 40000), "w": integers("uint8", 40000, 16, seed=1)}
        feeds["x"][0, 0], feeds["w"][:, 3] = 255, 255
        with np.errstate(over="ignore"):
            check(made, feeds)


def test_dynamic_quantisation() -> None:
    """What onnxruntime.quantization writes behind DynamicQuantizeLinear: Cast, scales, bias, and then an activation."""
    made = compiled("(uint8[B,64] x, int8[64,50] w, uint8 p, int8 z, float s, float[50] c, float[50] b) "
                    "=> (float[B,50] y) "
                    "{ i = MatMulInteger(x, w, p, z) f = Cast<to=1>(i) "
                    "r = Mul(s, c) g = Mul(f, r) h = Add(b, g) y = Relu(h) }")
    feeds = {"x": integers("uint8", 9, 64), "w": integers("int8", 64, 50, seed=1),
             "p": integers("uint8", 1).reshape(()),
             "z": np.array(0, np.int8), "s": np.array(0.02, np.float32),
             "c": np.linspace(0.001, 0.01, 50, dtype=np.float32),
             "b": np.linspace(-1, 1, 50, dtype=np.float32)}
    scaled = exact(feeds).astype(np.float32) * (feeds["s"] * feeds["c"])
    want = np.maximum(scaled + feeds["b"], 0)
    got = run(made, feeds)
    assert float(np.std(want)) > 0.1
    assert float(np.abs(got - want).max()) <= 2**-22 * float(np.abs(scaled).max())


@pytest.mark.parametrize(("made", "reason"), [
    (text("uint8", "int8", 5, 40, 40, ", uint8[5] p", "x, w, p"), "a zero point for each row"),
    (text("uint8", "int8", 5, 40, 40, ", int8[40,1] z", "x, w, , z"), "zero points of shape"),
    ("(uint8[5,40] x, int8[3,40,40] w) => (int32[3,5,40] y) { y = MatMulInteger(x, w) }", "take rows and a matrix"),
])
def test_declined(made: str, reason: str) -> None:
    with pytest.raises(Decline, match=reason):
        compiled(made)
