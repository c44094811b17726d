"""Attention with a sink, served: against the formula in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tilegraph
from tests.numeric.attention.attn_runner import compile_attention, run
from tests.unit.attention.test_attn_sinks import PLAIN, QUIET, SHIFT, SPELLED, model, quiet
from tilegraph.compiler import optimize

Array = np.ndarray[Any, Any]


def served(path: Path, **kwargs: Any) -> ort.InferenceSession:
    made = optimize(model(**kwargs).SerializeToString(), offload="all")
    assert [a["taken"] for a in made.summary.attentions] == [True], made.summary.attentions
    made.save(path / "m")
    tilegraph.register()
    return ort.InferenceSession(str(path / "m" / "model.onnx"), providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])


def feeds(batch: int, rows: int, keys: int, heads: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(rows * 100 + keys)
    made = {"q": rng.standard_normal((batch, heads, rows, 8)), "k": rng.standard_normal((batch, heads, 8, keys)),
            "v": rng.standard_normal((batch, heads, keys, 8)), "sinks": rng.standard_normal((heads, 1)) * 2,
            "mask": np.where(rng.random((batch, 1, rows, keys)) < 0.4, -np.inf, 0.0)}
    made["mask"][:, :, 0] = -np.inf  # a row that sees nothing but the sink
    if keys > 64:
        made["mask"][..., 64:] = -np.inf
        made["mask"][..., -1, -1] = 0.0
    return {name: array.astype(np.float32) for name, array in made.items()}


def formula(given: dict[str, Array]) -> Array:
    q, k, v, mask, sinks = (given[name].astype(np.float64) for name in ("q", "k", "v", "mask", "sinks"))
    x = q @ k * np.float64(np.float32(0.35)) + mask
    both = np.concatenate([x, np.broadcast_to(sinks[None, :, None], (*x.shape[:-1], 1))], -1)
    with np.errstate(invalid="ignore"):
        power = np.exp(both - both.max(-1, keepdims=True))
        result: Array = (power / power.sum(-1, keepdims=True))[..., :-1] @ v
    return result


@pytest.mark.parametrize("kwargs", [{}, {"softmax": SHIFT}, {"softmax": SPELLED, "before": True}])
def test_answers(kwargs: dict[str, Any], tmp_path: Path) -> None:
    session = served(tmp_path, **kwargs)
    for batch, rows, keys in ((2, 9, 20), (1, 40, 300), (1, 1, 30), (1, 3, 200), (1, 70, 1)):
        given = feeds(batch, rows, keys)
        want = formula(given)
        (got,) = session.run(None, given)
        assert np.all(want[:, :, 0] == 0)
        assert rows == 1 or np.std(want) > 1e-2
        assert np.abs(got - want).max() <= 2e-6, (rows, keys)
        assert np.all(got[:, :, 0] == 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38, 60.0])
def test_odd_sinks(value: float, tmp_path: Path) -> None:
    session = served(tmp_path)
    for rows in (3, 12):
        given = feeds(1, rows, 80)
        given["sinks"][1] = value
        want = formula(given)
        (got,) = session.run(None, given)
        assert np.array_equal(np.isnan(want), np.isnan(got))
        assert np.all(np.isnan(want[:, 1])) == (value in (np.inf,) or np.isnan(value))
        assert np.nanmax(np.abs(got - want)) <= 2e-6


@pytest.mark.parametrize(("spelling", "more"), [(QUIET, 1.0), (PLAIN, 2.0)])
def test_one_more_in_the_sum(spelling: str, more: float) -> None:
    compiled, _, graph = compile_attention(quiet(spelling))
    rng = np.random.default_rng(5)
    for rows, keys in ((3, 70), (40, 70)):
        shapes = {"q": (2, rows, 8), "k": (2, 8, keys), "v": (2, keys, 8)}
        given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        given["mask"] = np.where(rng.random((rows, keys)) < 0.4, -np.inf, 0.0).astype(np.float32)
        given["mask"][0] = -np.inf  # 0, not NaN
        q, k, v, mask = (given[n].astype(np.float64) for n in ("q", "k", "v", "mask"))
        power = np.exp(q @ k + mask)
        want = power / (power.sum(-1, keepdims=True) + more) @ v
        got = run(compiled, graph, given)
        assert np.all(got[:, 0] == 0)
        assert np.abs(got - want).max() <= 2e-6
