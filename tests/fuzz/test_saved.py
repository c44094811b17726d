"""Every model that a fuzzing run saved, and a few random graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.fuzz import FOUND, check, symbols
from tilegraph.compiler import optimize
from tilegraph.verify import verify

SAVED = sorted(FOUND.glob("*.onnx"))


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_what_was_found_stays_mended(path: Path, tmp_path: Path) -> None:
    for offload in ("all", "auto"):
        folder = optimize(path, offload=offload).save(tmp_path / f"{offload}.tilegraph")
        result = verify(path, folder, inputs=path.with_suffix(".npz"))
        assert result.same or result.inconclusive, [o.notes for o in result.outputs]
        assert not result.problems


@pytest.mark.parametrize("seed", [4, 5, 10, 35, 40, 1067, 1145])
def test_random_graphs(seed: int, tmp_path: Path) -> None:
    kind, why = check(seed, "all", tmp_path)
    assert kind in ("kernel", "ort", "unrunnable"), why


def test_a_wrong_answer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tilegraph.ops.pointwise import POINTWISE

    seeds = [s for s in range(400) if "Softsign" in last_operators(s)][:4]
    monkeypatch.setenv("TILEGRAPH_CACHE_DIR", str(tmp_path / "cache"))
    right = POINTWISE["", "Softsign"]
    wrong = replace(right, fn=lambda m, args, attrs, t: m.mul(right.fn(m, args, attrs, t), m.const(1.01, t)))
    monkeypatch.setitem(POINTWISE, ("", "Softsign"), wrong)
    assert "WRONG" in [check(seed, "all", tmp_path)[0] for seed in seeds]


def last_operators(seed: int) -> set[str]:
    """Those that make float32 outputs which are not all zero."""
    from tests.fuzz.graphs import Graph

    graph = Graph(seed)
    outputs = {o.name for o in graph.model().graph.output}
    return {n.op_type for n in graph.nodes for o in n.output
            if o in outputs and graph.values[o].dtype == np.float32 and np.nan_to_num(graph.values[o]).any()}


def test_other_names_give_the_same_kernels(tmp_path: Path) -> None:
    from tests.fuzz.fuzz import rewritten
    from tests.fuzz.graphs import Graph

    for seed in (3, 8, 12):
        model = Graph(seed).model()
        one, other = optimize(model, offload="all"), optimize(rewritten(model, seed), offload="all")
        assert symbols(one) == symbols(other)
        assert symbols(one)
