"""Every model that a fuzzing run saved, and a few random graphs."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.conformance.sweep_worker import close
from tests.fuzz.anew import SPELLINGS, reordered, symbols
from tests.fuzz.finish import finish, other_feeds
from tests.fuzz.fuzz import FOUND, SMALL, check, runner_of, second_judge
from tests.fuzz.graphs import OPSETS, Graph
from tests.fuzz.guards import one_answer
from tests.fuzz.profiles import PROFILES
from tests.fuzz.serving import anywhere, finely
from tests.fuzz.small import small_blocks
from tilegraph.compiler import optimize
from tilegraph.verify import verify

SAVED = sorted(FOUND.glob("*.onnx"))


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_what_was_found_stays_mended(path: Path, tmp_path: Path) -> None:
    for offload in ("all", "auto"):
        with small_blocks(tmp_path) if path.name.startswith(SMALL) else nullcontext():
            made = optimize(path, offload=offload)
        folder = made.save(tmp_path / f"{offload}.tilegraph")
        result = verify(path, folder, inputs=path.with_suffix(".npz"))
        assert result.same or result.inconclusive, [o.notes for o in result.outputs]
        assert not result.problems
        whole, cut = (runner_of(f).run(result.feeds[0]) for f in (folder, finely(made).save(tmp_path / "cut.tilegraph",
                                                                                         force=True)))
        assert all(close(path.stem, a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize("seed", [0, 4, 6, 7, 8, 13, 18])
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    kind, why = check(seed, "all", tmp_path)
    assert kind in ("kernel", "ort", "unrunnable"), why


def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tilegraph.ops.pointwise import POINTWISE

    seeds = list(islice((s for s in range(400) if "Tanh" in last_operators(s)), 3))
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    right = POINTWISE["", "Tanh"]
    wrong = replace(right, fn=lambda m, args, attrs, t: m.mul(right.fn(m, args, attrs, t), m.const(1.01, t)))
    monkeypatch.setitem(POINTWISE, ("", "Tanh"), wrong)
    assert "WRONG" in [check(seed, "all", tmp_path)[0] for seed in seeds]


def last_operators(seed: int) -> set[str]:
    """Those that make float32 outputs which are not all zero."""
    graph = Graph(seed)
    outputs = {o.name for o in finish(graph).graph.output}
    return {n.op_type for n in graph.nodes for o in n.output
            if o in outputs and graph.values[o].dtype == np.float32 and np.nan_to_num(graph.values[o]).any()}


def test_other_names_and_split_constants_give_the_same_kernels() -> None:
    for seed in (3, 8, 12):
        model = finish(Graph(seed))
        one = symbols(optimize(model, offload="all"))
        assert one
        for written in SPELLINGS:
            again = written(model, seed)
            assert again is None or symbols(optimize(again, offload="all")) == one, written.__name__


def test_another_order_of_nodes_is_a_model_with_the_same_nodes() -> None:
    for seed in range(20):
        model = finish(Graph(seed))
        moved = reordered(model, seed)
        seen = {v.name for v in (*moved.graph.input, *moved.graph.initializer)}
        for node in moved.graph.node:
            assert {i for i in node.input if i} <= seen
            seen |= set(node.output)
        assert sorted(n.name for n in moved.graph.node) == sorted(n.name for n in model.graph.node)


def test_graphs_have_everything_that_is_looked_for() -> None:
    graphs = [Graph(seed) for seed in range(170)]
    operators = {n.op_type for g in graphs for n in g.nodes}
    assert operators >= {"Gemm", "Conv", "ConvTranspose", "MaxPool", "Softmax", "If", "Loop", "Scan", "Resize",
                         "Shape", "LayerNormalization", "RMSNormalization", "QuantizeLinear", "MatMulNBits", "LSTM",
                         "SequenceAt", "GatherND", "ScatterND", "Leaky", "Einsum", "Xor", "CumSum", "Attention"}
    assert {g.profile for g in graphs} == set(PROFILES)
    assert {g.opset for g in graphs} == set(OPSETS)
    models = [finish(g) for g in graphs]
    assert any(m.functions for m in models)
    assert any(a.name == "allowzero" and not a.i for m in models for n in m.graph.node for a in n.attribute)
    assert any(0 in v.shape for g in graphs for v in g.feeds.values())
    other = [(g, f) for g, m in zip(graphs, models, strict=True) if (f := other_feeds(g, m))]
    assert any(f[n].shape != g.feeds[n].shape for g, f in other for n in f)


def test_small_blocks_are_other_code_for_the_same_kernels_and_leave_no_trace(tmp_path: Path,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "usual"))
    text = ('<ir_version: 10, opset_import: ["" : 21]> g (float[100, 40] x) => (float[40] y) <int64[1] a = {0}> '
            "{ y = ReduceSum<keepdims = 0>(x, a) }")
    model = onnx.parser.parse_model(text)
    with small_blocks(tmp_path):
        small = optimize(model, offload="all")
    usual = optimize(model, offload="all")
    assert symbols(small) == symbols(usual)
    assert small.manifest is not None
    assert usual.manifest is not None
    assert small.manifest.library.sha256 != usual.manifest.library.sha256
    assert os.environ["TILEGRAPH_CACHE_DIR"] == str(tmp_path / "usual")


def test_units_that_are_left_out_where_calls_are_cut_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the units are done where calls are cut, all where they are not."""
    def halved(made: Any) -> Any:
        programs = {n: replace(p, calls=tuple(replace(c, extent=c.extent.ceildiv(2)) for c in p.calls))
                    for n, p in finely(made).manifest.programs.items()}
        made.manifest = replace(made.manifest, programs=programs)
        return made

    seed = next(s for s in (0, 4, 6, 7) if check(s, "all", tmp_path)[0] == "kernel")
    monkeypatch.setattr("tests.fuzz.fuzz.finely", halved)
    assert check(seed, "all", tmp_path)[0] in ("WRONG", "RUN")


def test_the_second_judge_answers_for_us_or_against_us() -> None:
    x = np.array([1.0, np.nan, 2.0])
    text = '<ir_version: 10, opset_import: ["" : 21]> g (double[3] x) => (double[3] y) { y = LogSoftmax<axis=0>(x) }'
    model = onnx.parser.parse_model(text)
    assert second_judge(model, {"x": x}, ["y"], {"y": np.full(3, np.nan)})
    assert not second_judge(model, {"x": x}, ["y"], {"y": np.array([45.05, np.nan, 46.05])})


@pytest.mark.parametrize(("op", "values", "right"), [
    ("ReduceSum", [3e38, 3e38, -3e38], False), ("ReduceSum", [np.inf, 1, 2], True), ("ReduceL2", [1e25, 1], False),
    ("ReduceProd", [1e-30, 1e30, 1e-30], False), ("ReduceProd", [3, 0, 2], True), ("Softmax", [np.nan, 1], False),
    ("Conv", [np.inf, 1], False), ("Add", [np.inf, np.nan], True), ("MatMulInteger", [], False)])
def test_what_the_order_of_sums_decides_is_left_out(op: str, values: list[float], right: bool) -> None:
    assert one_answer(op, [np.array(values, np.float32)]) == right


def test_arrays_lie_anywhere_but_where_vectors_like_them() -> None:
    for dtype in (np.float32, np.int8, np.float64, np.bool_):
        given = np.arange(10).astype(dtype).reshape(2, 5)
        (made,) = anywhere({"x": given}).values()
        assert np.array_equal(made, given)
        assert made.flags["C_CONTIGUOUS"]
        assert made.ctypes.data % 64 == given.itemsize
