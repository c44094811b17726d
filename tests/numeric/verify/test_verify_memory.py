"""Runs that take much memory: a process each, which may take no more than is free; too little is told, not a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from verify_pairs import Pairs

from tilegraph.cli import main
from tilegraph.errors import NotEnoughMemory
from tilegraph.verify import api, run, verify
from tilegraph.verify.memory import live_bytes
from tilegraph.verify.source import read_model

# 4096 x 4096 scores: 64 MB in float32, 128 in float64, two of them alive at once.
SCORES = """g (float[4096] x) => (float[4096] y) {
    axis = Constant<value_ints = [1]>()
    column = Unsqueeze(x, axis)
    scores = Mul(column, x)
    weights = Softmax(scores)
    y = MatMul(weights, x)
}"""
MEGABYTE = 1 << 20
X = np.linspace(-3, 3, 4096, dtype=np.float32)


@pytest.fixture
def scores(make: Pairs) -> Path:
    return make(SCORES)


def test_what_is_alive_at_once(scores: Path) -> None:
    live = live_bytes(read_model(scores), {"x": X})
    assert 128 * MEGABYTE <= live <= 129 * MEGABYTE  # scores and weights


def test_only_the_reference_in_double_needs_too_much(scores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "HEAVY_BYTES", MEGABYTE)
    monkeypatch.setattr(run, "free_bytes", lambda: 100 * MEGABYTE)
    result = verify(scores, scores, inputs={"x": X}, threads=1)
    assert result.same
    assert "float64" not in result.reference
    assert any("not used" in n and "0.1 GB that are free" in n for n in result.notes)


def test_no_reference_at_all_is_an_error_that_says_what_to_do(scores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "HEAVY_BYTES", MEGABYTE)
    monkeypatch.setattr(run, "free_bytes", lambda: 50 * MEGABYTE)
    with pytest.raises(NotEnoughMemory, match=r"original: ORT, optimizations off.*0\.1 GB.*--dim") as caught:
        verify(scores, scores, inputs={"x": X}, threads=1)
    assert caught.value.exit_code == 2
    folder = scores.parent
    np.savez(folder / "x.npz", x=X)
    told = [f"--{kind}={folder / name}" for kind, name in (("inputs", "x.npz"), ("json", "v.json"), ("junit", "v.xml"))]
    assert main(["verify", str(scores), str(scores), *told]) == 2
    assert "that are free" in json.loads((folder / "v.json").read_text())["inconclusive"]
    assert 'errors="1"' in (folder / "v.xml").read_text()
