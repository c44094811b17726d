"""MatMulNBits against ONNX Runtime's kernel and against float64: bits, blocks, zero points, sizes, accuracy levels.

ONNX Runtime's CPU kernel at accuracy level 4 rounds rows to 8 bits; so does ours, with the same scales, and both differ
by float rounding only. Other levels compute in float32.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.numeric.codegen.runner import Compiled
from tests.numeric.quant.quant_runner import Array, compiled, run
from tests.unit.fusion.parse import model
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.gemm import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.gemm import lower_gemm, plan_gemm
from tilegraph.ops.prims import Decline


def weights(k: int, n: int, bits: int, block: int, zeros: bool, seed: int = 0) -> dict[str, Array]:
    """The inputs of MatMulNBits but for the rows."""
    rng = np.random.default_rng(seed)
    blocks = -(-k // block)
    found = {"w": rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8),
             "s": (rng.uniform(0.5, 1.5, (n, blocks)) / (2 ** (bits - 2) * k**0.5)).astype(np.float32)}
    if zeros:
        found["z"] = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
    return found


def halves(a: Array) -> Array:
    return np.stack([a & 15, a >> 4], axis=-1).reshape(*a.shape[:-1], -1)


def matrix(feeds: dict[str, Array], k: int, bits: int, block: int) -> Array:
    """[K, N] in float64."""
    w, s = feeds["w"], feeds["s"].astype(np.float64)
    n, blocks = s.shape
    q = (halves(w) if bits == 4 else w).astype(np.float64)
    z = np.full((n, blocks), 2.0 ** (bits - 1))
    if "z" in feeds:
        z = (halves(feeds["z"]) if bits == 4 else feeds["z"])[:, :blocks].astype(np.float64)
    return ((q - z[:, :, None]) * s[:, :, None]).reshape(n, -1).T[:k]


def rounded(x: Array, block: int) -> Array:
    """Rows rounded by block, in float64."""
    k = x.shape[-1]
    filled = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % block)]).reshape(*x.shape[:-1], -1, block)
    peak = np.abs(filled).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak == 0, np.float32(0), np.float32(127) / peak).astype(np.float32)
    q = np.round(filled * inverse).astype(np.float64)
    return (q * (peak / np.float32(127)).astype(np.float64)).reshape(*x.shape[:-1], -1)[..., :k]


def text(m: str, k: int, n: int, bits: int, block: int, level: int, zeros: bool, tail: str = "") -> str:
    blocks = -(-k // block)
    zero = f", uint8[{n},{-(-blocks * bits // 8)}] z" if zeros else ""
    end = tail or "y = Identity(t)"
    return (f"(float[{m},{k}] x, uint8[{n},{blocks},{block * bits // 8}] w, float[{n},{blocks}] s{zero}) => "
            f"(float[{m},{n}] y) {{ t = com.microsoft.MatMulNBits<K={k}, N={n}, bits={bits}, block_size={block}, "
            f"accuracy_level={level}>(x, w, s{', z' if zeros else ''}) {end} }}")


@cache
def made(m: str, k: int, n: int, bits: int, block: int, level: int, zeros: bool, isa: str = "") -> Compiled:
    return compiled(shaped(m, k, n, bits, block, level, zeros), Isa.parse(isa) if isa else None)


def shaped(m: str, k: int, n: int, bits: int, block: int, level: int, zeros: bool) -> str:
    return text(m, k, n, bits, block, level, zeros, "y = Neg(t)")


def theirs(feeds: dict[str, Array], k: int, bits: int, block: int, level: int) -> Array:
    """ONNX Runtime's answer."""
    n = feeds["s"].shape[0]
    constants = [numpy_helper.from_array(feeds[name], name) for name in ("w", "s", "z") if name in feeds]
    node = helper.make_node("MatMulNBits", ["x", *(c.name for c in constants)], ["y"], domain="com.microsoft", K=k, N=n,
                            bits=bits, block_size=block, accuracy_level=level)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, feeds["x"].shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets)
    proto.ir_version = 10
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": feeds["x"]})[0])


def normal(*shape: int) -> Array:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def close(got: Array, want: Array, share: float = 4e-6) -> None:
    assert got.shape == want.shape
    assert float(np.std(want)) > 0.1, "a constant answer proves nothing"
    assert float(np.abs(got - want).max()) <= share * max(1.0, float(np.abs(want).max()))


KINDS = [(4, 32, False), (4, 32, True), (4, 16, True), (4, 128, False), (4, 256, True), (8, 32, False), (8, 64, True)]


@pytest.mark.parametrize(("bits", "block", "zeros"), KINDS)
@pytest.mark.parametrize(("k", "n"), [(256, 64), (96, 50), (200, 17)])
def test_level_4(bits: int, block: int, zeros: bool, k: int, n: int) -> None:
    kernel = made("B", k, n, bits, block, 4, zeros)
    for m in (1, 2, 7, 8, 21):
        feeds = {"x": normal(m, k), **weights(k, n, bits, block, zeros)}
        want = -(rounded(feeds["x"], block) @ matrix(feeds, k, bits, block))
        close(run(kernel, feeds, tasks=3), want)


@pytest.mark.parametrize(("bits", "block", "zeros"), KINDS)
def test_float_levels(bits: int, block: int, zeros: bool) -> None:
    k, n = 200, 50
    kernel = made("B", k, n, bits, block, int(zeros), zeros)
    for m in (1, 5, 16, 30):
        feeds = {"x": normal(m, k), **weights(k, n, bits, block, zeros)}
        close(run(kernel, feeds), -(feeds["x"].astype(np.float64) @ matrix(feeds, k, bits, block)))


def test_float_levels_with_8_lanes() -> None:
    """Registers of 8 lanes look nothing up; 75 rows of the matrix end inside of a block and of a word."""
    for zeros in (False, True):
        feeds = {"x": normal(9, 75), **weights(75, 40, 4, 32, zeros)}
        kernel = made("9", 75, 40, 4, 32, 0, zeros, "x86-64-v3")
        close(run(kernel, feeds), -(feeds["x"].astype(np.float64) @ matrix(feeds, 75, 4, 32)))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("m", [1, 8])
def test_like_onnx_runtime(zeros: bool, m: int) -> None:
    """The roundings of rows are the same, so results are nearer to it than rounding by other scales would be."""
    k, n = 512, 64
    feeds = {"x": normal(m, k), **weights(k, n, 4, 32, zeros)}
    want = theirs(feeds, k, 4, 32, 4)
    exact = feeds["x"].astype(np.float64) @ matrix(feeds, k, 4, 32)
    assert float(np.abs(want - exact).max()) > 1e-4, "ONNX Runtime computed in float32"
    close(-run(made(str(m), k, n, 4, 32, 4, zeros), feeds), want)


@pytest.mark.parametrize("isa", ["x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4", "x86-64-v4+avx512vnni"])
@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_instruction_sets(isa: str, bits: int, zeros: bool) -> None:
    wanted = Isa.parse(isa)
    if wanted.vector_bits > host().vector_bits or not set(wanted.features) <= set(host().features):
        pytest.skip(f"this machine has no {isa}")
    kernel = made("9", 128, 40, bits, 32, 4, zeros, isa)
    assert kernel.kernel.features == wanted.features
    feeds = {"x": normal(9, 128), **weights(128, 40, bits, 32, zeros)}
    feeds["w"][:4] = 255
    close(run(kernel, feeds), -(rounded(feeds["x"], 32) @ matrix(feeds, 128, bits, 32)))


def test_spilled_registers_do_not_cross_lines() -> None:
    graph = model(shaped("8", 64, 32, 4, 32, 4, False), 21)
    isa = Isa.parse("x86-64-v4+avx512vnni")
    lowered = lower_gemm(list(graph.graph), list(graph.graph.outputs), {"": 21, "com.microsoft": 1})
    func = generate(plan_gemm(lowered), "tg_test", isa.vector_bits, isa.features).func
    listing = t.assembly(func, triple="x86_64-linux-gnu", mcpu=isa.llvm_mcpu, mattr=isa.llvm_mattr())
    assert "andq\t$-64, %rsp" in listing


def test_rows_of_zeros_and_special_values() -> None:
    kernel = made("5", 64, 32, 4, 32, 4, False)
    feeds = {"x": normal(5, 64), **weights(64, 32, 4, 32, False)}
    feeds["x"][1] = 0
    feeds["x"][2, 40] = np.nan
    feeds["x"][3, :32] = 1e-40
    got = run(kernel, feeds)
    assert not got[1].any()
    assert np.isnan(got[2]).all()
    assert np.isfinite(got[[0, 3, 4]]).all()


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("bits=4", "bits=2", "weights of 2 bits"),
    ("block_size=32", "block_size=8", "blocks of 8"),
    ("(x, w, s)", "(x, w, s, , g)", "reordered"),
    ("(x, w, s)", "(x, w, s, f)", "zero points of float32"),
    ("K=128", "K=96", "not 96 for certain"),
])
def test_declined(old: str, new: str, reason: str) -> None:
    changed = shaped("5", 128, 40, 4, 32, 4, False).replace(old, new).replace(
        "[40,4] s)", "[40,4] s, int32[128] g, float[40,4] f)")
    with pytest.raises(Decline, match=reason):
        compiled(changed)
