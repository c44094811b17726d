"""Inputs that are wrong or at the edge: the outcome of ONNX Runtime on the original, values and errors alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import tilegraph
from tilegraph.compiler import optimize

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
N, D = 4, 16
RNG = np.random.default_rng(0)
_TYPES = {"float32": 1, "bool": 9}
SPELLINGS = ("eager", "Attention", "MultiHeadAttention")


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def build(spelling: str, mask: str, *, past: bool, heads: int = N) -> onnx.ModelProto:
    """Symbolic sizes; `mask`: "float", "bool" or "" for none; inputs q, k, v, m, pk, pv."""
    rank3 = spelling == "MultiHeadAttention"
    infos: dict[str, list[Any]] = {n: ["b", s, N * D] if rank3 else ["b", N, s, D]
                                   for n, s in (("q", "s"), ("k", "s" if past else "t"), ("v", "s" if past else "t"))}
    if mask:
        infos["m"] = ["b", 1, "s", "t"]
    if past:
        infos |= {"pk": ["b", N, "p", D], "pv": ["b", N, "p", D]}
    made, outputs = helper.make_node, ["o", "nk", "nv"] if past else ["o"]
    constants: dict[str, Any] = {}
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    m, given = "m" if mask else "", ["pk", "pv"] if past else []
    if spelling == "Attention":
        nodes = [made("Attention", ["q", "k", "v", m, *given], outputs)]
    elif spelling == "MultiHeadAttention":
        nodes = [made("MultiHeadAttention", ["q", "k", "v", "", "", m, *given], outputs, domain="com.microsoft",
                      num_heads=heads)]
    else:
        constants = {"c": np.float32(0.25), "low": np.float32(-np.inf)}
        nodes = [made("Concat", [f"p{n}", n], [f"n{n}"], axis=2) for n in "kv" if past]
        k, v = ("nk", "nv") if past else ("k", "v")
        nodes += [made("Transpose", [k], ["kt"], perm=[0, 1, 3, 2]), made("MatMul", ["q", "kt"], ["x0"]),
                  made("Mul", ["x0", "c"], ["x1"])]
        if mask:
            nodes.append(made("Add", ["x1", "m"], ["x"]) if mask == "float" else
                         made("Where", ["m", "x1", "low"], ["x"]))
        nodes += [made("Softmax", ["x" if mask else "x1"], ["w"], axis=-1), made("MatMul", ["w", v], ["o"])]
    graph = helper.make_graph(nodes, "g", [
        helper.make_tensor_value_info(n, 9 if n == "m" and mask == "bool" else 1, s) for n, s in infos.items()],
        [helper.make_tensor_value_info(n, 1, None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def feeds(spelling: str, mask: Array | None, queries: int, keys: int, past: int | None = None) -> Feeds:
    def laid(count: int) -> Array:
        return normal(2, count, N * D) if spelling == "MultiHeadAttention" else normal(2, N, count, D)

    made = {"q": laid(queries), "k": laid(keys), "v": laid(keys)}
    if mask is not None:
        made["m"] = mask
    if past is not None:
        made |= {"pk": normal(2, N, past, D), "pv": normal(2, N, past, D)}
    return made


class Both:
    """The original in ONNX Runtime, and what became of it."""

    def __init__(self, model: onnx.ModelProto, folder: Path, taken: bool = True) -> None:
        made = optimize(model.SerializeToString(), offload="all")
        assert [a["taken"] for a in made.summary.attentions] == [taken], made.summary.attentions
        made.save(folder / "m")
        tilegraph.register()
        self.original = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.ours = ort.InferenceSession(str(folder / "m" / "model.onnx"),
                                         providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])

    def same(self, given: Feeds) -> list[Array]:
        wanted, got = self.original.run(None, given), self.ours.run(None, given)
        for want, one in zip(wanted, got, strict=True):
            assert want.shape == one.shape
            assert np.array_equal(np.isnan(want), np.isnan(one))
            finite = np.isfinite(want)
            assert np.array_equal(want[~finite], one[~finite], equal_nan=True)
            assert not finite.any() or np.abs(want[finite] - one[finite]).max() <= 4e-6
        return got

    def both_fail(self, given: Feeds) -> str:
        """Our message."""
        with pytest.raises(Exception, match=r"\w"):
            self.original.run(None, given)
        with pytest.raises(Exception, match=r"\w") as failure:
            self.ours.run(None, given)
        return str(failure.value)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_masks_that_do_not_broadcast(spelling: str, tmp_path: Path) -> None:
    both = Both(build(spelling, "float", past=False), tmp_path)
    both.same(feeds(spelling, normal(2, 1, 5, 9), 5, 9))
    for shape in ((2, 1, 5, 10), (2, 1, 4, 9), (3, 1, 5, 9)):
        assert both.both_fail(feeds(spelling, normal(*shape), 5, 9))
    both.same(feeds(spelling, normal(2, 1, 5, 9), 5, 9))  # a run that failed leaves nothing behind


@pytest.mark.parametrize("spelling", ["eager", "Attention"])
@pytest.mark.parametrize("mask", ["float", "bool"])
@pytest.mark.parametrize("queries", [3, 40])
def test_rows_without_a_key(spelling: str, mask: str, queries: int, tmp_path: Path) -> None:
    """NaN where the softmax of the exported graph makes it; 0 where ONNX's operator says so."""
    shown = RNG.random((2, 1, queries, 70)) < 0.5
    shown[..., 0] = True
    shown[1, 0, 1] = False
    given = shown if mask == "bool" else np.where(shown, normal(*shown.shape), -np.inf).astype(np.float32)
    both = Both(build(spelling, mask, past=False), tmp_path)
    (result,) = both.same(feeds(spelling, given, queries, 70))
    row = result[1, :, 1]
    assert np.isnan(row).all() if spelling == "eager" else not row.any()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("queries", [2, 40])
def test_nan_in_masks(spelling: str, queries: int, tmp_path: Path) -> None:
    mask = normal(2, 1, queries, 70)
    mask[0, 0, 1, 5] = np.nan
    mask[1, 0, 0, 60:] = np.inf
    result = Both(build(spelling, "float", past=False), tmp_path).same(feeds(spelling, mask, queries, 70))[0]
    assert np.isnan(result).any()
    assert np.isfinite(result).any()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_empty_cache_is_a_first_run(spelling: str, tmp_path: Path) -> None:
    both = Both(build(spelling, "", past=True), tmp_path)
    for queries, past in ((1, 0), (20, 0), (1, 30), (20, 30)):
        both.same(feeds(spelling, None, queries, queries, past))


@pytest.mark.parametrize("past", [0, 9])
def test_no_queries(past: int, tmp_path: Path) -> None:
    both = Both(build("eager", "", past=True), tmp_path)
    given = feeds("eager", None, 0, 0, past)
    assert [a.shape for a in both.same(given)] == [(2, N, 0, D), (2, N, past, D), (2, N, past, D)]


def test_no_keys(tmp_path: Path) -> None:
    """A sum over nothing."""
    both = Both(build("eager", "", past=False), tmp_path)
    for queries in (1, 20):
        given = feeds("eager", None, queries, 0)
        (want,), (got,) = both.original.run(None, given), both.ours.run(None, given)
        assert want.shape == got.shape
        assert np.array_equal(want, got, equal_nan=True)


def test_heads_that_do_not_divide_stay_with_onnx_runtime() -> None:
    model = build("MultiHeadAttention", "", past=False, heads=3)
    made = optimize(model.SerializeToString(), offload="all")
    assert [(a["taken"], a["reason"]) for a in made.summary.attentions] == [
        (False, "3 heads do not divide the width 64 of query")]
