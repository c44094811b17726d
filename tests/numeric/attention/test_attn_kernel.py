"""Attention kernels against float64: every spelling, odd sizes, symbolic sizes, masks, dead rows, special values."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.numeric.attention.attn_runner import compile_attention, run
from tests.numeric.codegen.runner import Array
from tests.unit.attention.spellings import LAYOUTS, MASKS, SCALES, SOFTMAXES, Spelling
from tilegraph.codegen.isa import Isa


def close(got: Array, want: Array, feeds: dict[str, Array]) -> None:
    """float32 accumulation: a few units of the largest value, more for longer sums."""
    assert got.shape == want.shape
    assert np.array_equal(np.isnan(got), np.isnan(want)), "NaN elsewhere"
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite].astype(np.float32), equal_nan=True)
    assert float(np.std(want[finite])) > 1e-3, "a constant answer proves nothing"
    scale = max(1.0, float(np.abs(want[finite]).max()))
    assert float(np.abs(got[finite] - want[finite]).max()) <= 2e-6 * scale


def check(spelling: Spelling, tasks: int = 2, offset: int = 4, **sizes: int) -> None:
    compiled, _, graph = compile_attention(spelling.model())
    feeds = spelling.feeds(**sizes)
    close(run(compiled, graph, feeds, tasks, offset), spelling.answer(feeds), feeds)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", SCALES)
def test_layouts_and_scales(layout: str, scale: str) -> None:
    check(Spelling(2, 3, 9, 9, 8, 8, layout=layout, scale=scale))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_masks_and_softmaxes(mask: str, softmax: str) -> None:
    check(Spelling(2, 2, 21, 21, 8, 12, mask=mask, softmax=softmax))


@pytest.mark.parametrize(("queries", "keys", "depth", "width"), [
    (1, 1, 8, 8), (8, 16, 1, 1), (64, 64, 64, 64), (65, 129, 17, 33), (7, 300, 40, 24), (130, 63, 80, 100),
    (3, 64, 256, 256), (200, 31, 5, 250), (9, 96, 8, 8)])
def test_sizes(queries: int, keys: int, depth: int, width: int) -> None:
    check(Spelling(1, 2, queries, keys, depth, width))


@pytest.mark.parametrize("mask", ["causal-inf", "causal-min", "causal-where", "positions", "window", "blocks"])
def test_blocks_are_left_out(mask: str) -> None:
    """Several blocks of queries and keys, most of them hidden."""
    check(Spelling(1, 2, 300, 300, 16, 16, mask=mask, window=40))


def test_instruction_sets() -> None:
    for base, mask in product(("x86-64-v3", "x86-64-v2"), ("none", "causal-inf")):
        keys = 70 if mask != "none" else 112  # whole blocks whose number of vectors is no power of two, too
        spelling = Spelling(1, 2, 70, keys, 20, 12, mask=mask)
        compiled, _, graph = compile_attention(spelling.model(), Isa(base))
        feeds = spelling.feeds()
        close(run(compiled, graph, feeds), spelling.answer(feeds), feeds)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "batched"])
@pytest.mark.parametrize("mask", ["none", "positions", "window", "padding-bool"])
def test_symbolic_sizes(layout: str, mask: str) -> None:
    spelling = Spelling(2, 2, 9, 9, 8, 8, layout=layout, mask=mask, symbolic=True)
    compiled, _, graph = compile_attention(spelling.model())
    for batch, length in ((1, 1), (2, 5), (1, 64), (1, 150)):
        feeds = spelling.feeds(b=batch, s=length)
        close(run(compiled, graph, feeds, tasks=2), spelling.answer(feeds), feeds)


def test_one_query_on_many_keys() -> None:
    spelling = Spelling(1, 2, 9, 10, 8, 8, symbolic=True)
    compiled, _, graph = compile_attention(spelling.model())
    for length, keys in ((1, 200), (1, 1), (3, 77)):
        feeds = spelling.feeds(s=length, t=keys)
        close(run(compiled, graph, feeds, tasks=3), spelling.answer(feeds), feeds)


# -- special values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softmax", SOFTMAXES)
@pytest.mark.parametrize("where", ["rows", "all", "late"])
def test_rows_without_keys(softmax: str, where: str) -> None:
    """A row of which every key is hidden by -inf is NaN, or 0 under a guard; one hidden by finfo.min is a mean."""
    for mask in ("blocks", "causal-min"):
        spelling = Spelling(1, 2, 150, 150, 8, 8, mask=mask, softmax=softmax)
        model = spelling.model()
        compiled, _, graph = compile_attention(model)
        hidden = spelling.inits["mask"].min()
        (name,) = [n for n, v in graph.graph.initializers.items() if v.const_value.shape.rank() == 4]
        array = spelling.inits["mask"].copy()
        array[..., {"rows": slice(3, 9), "all": slice(None), "late": slice(140, None)}[where], :] = hidden
        graph.graph.initializers[name].const_value = _tensor(array)
        feeds = spelling.feeds()
        x = _scores(spelling, feeds) + array
        want = _softmax_times(x.astype(np.float32).astype(np.float64), feeds["v"], softmax == "guarded")
        got = run(compiled, graph, feeds)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        finite = ~np.isnan(want)
        assert np.allclose(got[finite], want[finite], rtol=0, atol=2e-6)


@pytest.mark.parametrize("mask", ["none", "causal-inf", "causal-where", "positions", "softcap"])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values(mask: str, which: str, value: float) -> None:
    """Whatever one element of an operand is, NaN and infinities come out where the whole score matrix has them."""
    spelling = Spelling(1, 2, 140, 140, 8, 8, mask=mask)
    compiled, _, graph = _compiled(spelling)
    feeds = spelling.feeds()
    feeds[which][0, 1, 100, 3] = value
    got = run(compiled, graph, feeds)
    with np.errstate(all="ignore"):
        x = _scores(spelling, feeds)
        allowed = np.arange(140)[None] <= np.arange(140)[:, None]
        if mask == "softcap":
            x = np.tanh(x / 2) * 2
        elif mask == "causal-inf":
            x = x + np.where(allowed, 0, -np.inf)
        elif mask == "causal-where":
            x = np.where(allowed, x, float(np.finfo(np.float32).min))
        elif mask == "positions":
            x = np.where(allowed, x, -np.inf)
        want = _softmax_times(x, feeds["v"], False)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(np.isposinf(got), np.isposinf(want))
    assert np.array_equal(np.isneginf(got), np.isneginf(want))
    finite = np.isfinite(want)
    assert finite.any()
    assert np.allclose(got[finite], want[finite], rtol=0, atol=2e-6)


@pytest.mark.parametrize("low", [-5.0, -2000.0, -9.9e8])
def test_hidden_scores_that_are_not_low(low: float) -> None:
    """Where visible scores are about as low as hidden ones, nothing is hidden for certain: all blocks are computed."""
    spelling = Spelling(1, 1, 140, 140, 8, 8, mask="causal-multiply", scale="none")
    compiled, _, graph = _compiled(spelling)
    feeds = spelling.feeds()
    feeds["q"][...] = 0.0
    feeds["q"][..., 0] = 1000.0
    feeds["k"][..., 0] = low / 1000
    feeds["k"][:, :, 60:, 0] += np.float32(low * 1e-4 / 1000)
    allowed = np.arange(140)[None] <= np.arange(140)[:, None]
    x = (_scores(spelling, feeds, 1.0) * allowed - 1e9 * (1 - allowed)).astype(np.float32).astype(np.float64)
    got, want = run(compiled, graph, feeds), _softmax_times(x, feeds["v"], False)
    assert np.std(want) > 0.01
    assert np.allclose(got, want, rtol=0, atol=1e-3 if low < -1e8 else 2e-4)


_made: dict[str, tuple] = {}  # type: ignore[type-arg]


def _compiled(spelling: Spelling) -> tuple:  # type: ignore[type-arg]
    key = repr(spelling)
    if key not in _made:
        _made[key] = compile_attention(spelling.model())
    spelling.model()
    return _made[key]


def _scores(spelling: Spelling, feeds: dict[str, Array], factor: float | None = None) -> Array:
    scale = spelling.depth ** -0.5 if factor is None else factor
    return np.asarray((feeds["q"].astype(np.float64) @ np.swapaxes(feeds["k"], -1, -2)) * scale)


def _softmax_times(x: Array, v: Array, guarded: bool) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        if guarded:
            p = np.where(np.isnan(p), 0, p)
        return np.asarray(p @ v.astype(np.float64))


def _tensor(array: Array) -> object:
    import onnx_ir as ir

    return ir.tensor(array)


def _model(nodes: list[onnx.NodeProto], shapes: dict[str, list[int]], **constants: Array) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, 1, s) for n, s in shapes.items()],
                              [helper.make_tensor_value_info("o", 1, None)],
                              [numpy_helper.from_array(v, n) for n, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_keys_times_queries() -> None:
    """The softmax runs over the rows of k q^T, and the weights are transposed before the second product."""
    made = helper.make_node
    nodes = [made("MatMul", ["k", "q"], ["s"]), made("Softmax", ["s"], ["p"], axis=-2),
             made("Transpose", ["p"], ["t"], perm=[0, 1, 3, 2]), made("MatMul", ["t", "v"], ["o"])]
    shapes = {"k": [1, 2, 70, 8], "q": [1, 2, 8, 21], "v": [1, 2, 70, 12]}
    compiled, _, graph = compile_attention(_model(nodes, shapes))
    rng = np.random.default_rng(3)
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    q, k, v = (feeds[n].astype(np.float64) for n in "qkv")
    x = np.swapaxes(k @ q, 2, 3)
    weights = np.exp(x - x.max(-1, keepdims=True))
    close(run(compiled, graph, feeds, 2, 4), weights / weights.sum(-1, keepdims=True) @ v, feeds)


@pytest.mark.parametrize("spoiled", ["nothing", "a key", "a value", "a query"])
def test_rows_that_the_mask_gives_up(spoiled: str) -> None:
    """Zero where the mask is minus infinity for all keys, whatever the scores are, and only there."""
    made = helper.make_node
    nodes = [made("MatMul", ["q", "k"], ["s"]), made("Add", ["s", "m"], ["x"]), made("Softmax", ["x"], ["p0"], axis=-1),
             made("ReduceMax", ["m", "last"], ["top"]), made("Equal", ["top", "low"], ["gone"]),
             made("Where", ["gone", "zero", "p0"], ["p"]), made("MatMul", ["p", "v"], ["o"])]
    shapes = {"q": [1, 2, 70, 8], "k": [1, 2, 8, 130], "v": [1, 2, 130, 12], "m": [70, 130]}
    compiled, space, graph = compile_attention(_model(
        nodes, shapes, last=np.array([-1]), low=np.array(-np.inf, np.float32), zero=np.array(0, np.float32)))
    assert space.hides is not None
    rng = np.random.default_rng(4)
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    feeds["m"] = np.where(rng.random((70, 130)) < 0.5, feeds["m"], np.float32(-np.inf))
    feeds["m"][[3, 64, 69]] = -np.inf
    if spoiled != "nothing":
        feeds[{"a key": "k", "a value": "v", "a query": "q"}[spoiled]][0, 0, 3, 5] = np.nan
    with np.errstate(invalid="ignore"):
        x = feeds["q"].astype(np.float64) @ feeds["k"].astype(np.float64) + feeds["m"]
        weights = np.exp(x - x.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        weights[:, :, feeds["m"].max(-1) == -np.inf] = 0
        want = weights @ feeds["v"].astype(np.float64)
    close(run(compiled, graph, feeds, 2, 4), want, feeds)


@pytest.mark.parametrize("queries", [3, 70])
@pytest.mark.parametrize("cast", [False, True])
def test_float16_is_storage(queries: int, cast: bool) -> None:
    """Read and written as float16, computed in float32: one rounding, at the end."""
    made = helper.make_node
    nodes = [made("MatMul", ["q", "k"], ["s"])]
    if cast:
        nodes += [made("Cast", ["s"], ["s32"], to=1), made("Softmax", ["s32"], ["p32"], axis=-1),
                  made("Cast", ["p32"], ["p"], to=10)]
    else:
        nodes.append(made("Softmax", ["s"], ["p"], axis=-1))
    nodes.append(made("MatMul", ["p", "v"], ["o"]))
    shapes = {"q": [1, 2, queries, 16], "k": [1, 2, 16, 130], "v": [1, 2, 130, 12]}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, 10, s) for n, s in shapes.items()],
                              [helper.make_tensor_value_info("o", 10, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    compiled, space, fused = compile_attention(model)
    assert space.stored == "float16"
    rng = np.random.default_rng(5)
    feeds: dict[str, Array] = {n: rng.standard_normal(s).astype(np.float16) for n, s in shapes.items()}
    got = run(compiled, fused, feeds, 2, 4)
    assert got.dtype == np.float16
    x = feeds["q"].astype(np.float64) @ feeds["k"].astype(np.float64)
    weights = np.exp(x - x.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ feeds["v"].astype(np.float64)
    assert np.std(want) > 1e-2
    assert np.abs(got - want).max() <= 0.51 * float(np.finfo(np.float16).eps) * float(np.abs(want).max())
