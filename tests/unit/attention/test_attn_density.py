"""Densities against masks that numpy builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.unit.attention.attn_support import fused
from tests.unit.attention.spellings import Spelling
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.attention import AttentionFusion, density
from tilegraph.rewrites.normalise import NORMALISE


@pytest.mark.parametrize(("mask", "kind"), [
    ("causal-inf", "mask"), ("causal-min", "mask"), ("causal-where", "mask"), ("causal-multiply", "mask"),
    ("blocks", "mask"), ("positions", "mask"), ("window", "mask")])
def test_static_masks(mask: str, kind: str) -> None:
    spelling = Spelling(1, 2, 130, 130, 8, 8, mask=mask, window=7)
    _, (decision,) = fused(spelling.model())
    assert decision.data["kind"] == kind
    assert decision.data["density"] == pytest.approx(spelling.allowed().mean(), abs=1e-4)


@pytest.mark.parametrize("mask", ["causal-where", "window"])
def test_some_blocks_stand_for_a_large_mask(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 blocks of 13, the last of them not whole: at 8192 positions all keys counted as visible."""
    monkeypatch.setattr(density, "_MOST", 4 * 64 * 800)
    spelling = Spelling(1, 2, 800, 800, 8, 8, mask=mask, window=70)
    _, (decision,) = fused(spelling.model())
    assert decision.data["density"] == pytest.approx(spelling.allowed().mean(), rel=0.06)
    assert decision.data["density"] != pytest.approx(spelling.allowed().mean(), abs=1e-6)


def test_positions_of_unknown_length_count_512() -> None:
    _, (decision,) = fused(Spelling(mask="positions", symbolic=True).model())
    assert decision.data["kind"] == "positions"
    assert decision.data["density"] == pytest.approx(np.tri(512).mean(), abs=1e-4)


def test_no_run_is_longer_than_a_table_of_masks() -> None:
    """A table of 200 positions, cut to the length of a run: as long as 128 of the lengths that are tried."""
    table = np.abs(np.arange(200)[:, None] - np.arange(200)) < 9
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["" : 18]>
    cut (float[1, 2, s, 8] q, float[1, 2, 8, s] k, float[1, 2, s, 8] v) => (float[1, 2, s, 8] o)
    <int64[2] from = {0, 0}, int64[2] axes = {0, 1}, float low = {-inf}>
    {
        n = Shape <start=2, end=3> (q)
        to = Concat <axis=0> (n, n)
        m = Slice(table, from, to, axes)
        x = MatMul(q, k)
        y = Where(m, x, low)
        w = Softmax <axis=-1> (y)
        o = MatMul(w, v)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    _, (decision,) = fused(model)
    assert decision.data["density"] == pytest.approx(table[:128, :128].mean(), abs=1e-4)


@pytest.mark.parametrize(("mask", "kind"), [("none", "dense"), ("softcap", "dense"), ("alibi", "mask"),
                                            ("padding", "mask"), ("padding-bool", "mask"), ("bias", "mask")])
def test_nothing_is_hidden_for_certain(mask: str, kind: str) -> None:
    _, (decision,) = fused(Spelling(mask=mask).model())
    assert decision.data == {**decision.data, "kind": kind, "density": 1.0}


def test_what_a_run_adds_hides_nothing() -> None:
    spelling = Spelling(1, 2, 65, 65, 8, 8, mask="causal+padding")
    _, (decision,) = fused(spelling.model())
    assert decision.data["density"] == pytest.approx(np.tri(65).mean(), abs=1e-4)


def reported(spelling: Spelling, feeds: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """What is reported of the one attention, with `feeds` as the example."""
    context = PassContext(sample=feeds)
    Pipeline((*NORMALISE, AttentionFusion("all"))).run(load(spelling.model()), context)
    (decision,) = context.diagnostics.of("attention")
    return decision.data


@pytest.mark.parametrize(("mask", "name", "symbolic"), [
    ("padding", "padding", True), ("padding-bool", "present", False), ("causal+padding", "padding", False)])
def test_what_a_run_hides_is_measured_on_an_example(mask: str, name: str, symbolic: bool) -> None:
    spelling = Spelling(2, 2, 65, 65, 8, 8, mask=mask, symbolic=symbolic)
    spelling.model()
    feeds = spelling.feeds()
    present = (feeds[name] == 0 if name == "padding" else feeds[name]).reshape(2, 1, 65)
    seen = present & spelling.allowed() if "causal" in mask else np.broadcast_to(present, (2, 65, 65))
    data = reported(spelling, feeds)
    assert data["inputs"] == [name]
    assert data["measured"] == pytest.approx(seen.mean(), abs=1e-4)
    assert data["measured"] < data["density"]
    assert reported(spelling, {k: v for k, v in feeds.items() if k != name})["measured"] is None


def test_rows_that_a_finite_number_hides_whole_are_seen_whole() -> None:
    spelling = Spelling(2, 2, 65, 65, 8, 8, mask="padding")
    spelling.model()
    feeds = spelling.feeds()
    feeds["padding"][1] = np.finfo(np.float32).min
    data = reported(spelling, feeds)
    assert data["measured"] == pytest.approx((1 + (feeds["padding"][0] == 0).mean()) / 2, abs=1e-4)
