"""Softmaxes in every form give what ONNX Runtime gives, rows without a key and NaN included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.numeric.attention.attn_runner import compile_attention, run
from tests.unit.attention import test_attn_forms as forms

Array = np.ndarray[Any, Any]


def answers(name: str, feeds: dict[str, Array]) -> tuple[Array, Array]:
    """(ours, ONNX Runtime's without optimizations) for the form `name`."""
    model = forms.attention(forms.FORMS[name])
    compiled, _, graph = compile_attention(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return run(compiled, graph, feeds), session.run(None, feeds)[0]


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {"q": rng.standard_normal((1, 2, 16, 8), dtype=np.float32),
            "k": rng.standard_normal((1, 2, 8, 16), dtype=np.float32),
            "v": rng.standard_normal((1, 2, 16, 8), dtype=np.float32)}


@pytest.mark.parametrize("name", list(forms.FORMS))
def test_answers(name: str) -> None:
    got, want = answers(name, feeds())
    assert np.std(want) > 0.1
    assert np.abs(got - want).max() <= 4e-6 * max(1.0, float(np.abs(want).max()))


@pytest.mark.parametrize("name", [n for n in forms.FORMS if "masked" in n or "chosen" in n or "keys 0" in n])
def test_rows_without_a_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = forms.CONSTS["keep"].copy()
    keep[3] = False
    monkeypatch.setitem(forms.CONSTS, "keep", keep)
    got, want = answers(name, feeds())
    assert np.isnan(want[..., 3, :]).all() or (want[..., 3, :] == 0).all()
    assert np.array_equal(got[..., 3, :], want[..., 3, :], equal_nan=True)
    assert np.array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("name", list(forms.FORMS))
def test_a_key_of_nan(name: str) -> None:
    """A key that is NaN makes rows NaN where, and only where, it does so in ONNX Runtime: also where it is hidden."""
    given = feeds()
    given["k"][0, 0, :, 5] = np.nan
    got, want = answers(name, given)
    assert np.isnan(want).any() == (name != "masked, empty rows 0")
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got == 0, want == 0)
