"""Densities against masks that numpy builds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.attention.attn_support import fused
from tests.unit.attention.spellings import Spelling


@pytest.mark.parametrize(("mask", "kind"), [
    ("causal-inf", "mask"), ("causal-min", "mask"), ("causal-where", "mask"), ("causal-multiply", "mask"),
    ("blocks", "mask"), ("positions", "mask"), ("window", "mask")])
def test_static_masks(mask: str, kind: str) -> None:
    spelling = Spelling(1, 2, 130, 130, 8, 8, mask=mask, window=7)
    _, (decision,) = fused(spelling.model())
    assert decision.data["kind"] == kind
    assert decision.data["density"] == pytest.approx(spelling.allowed().mean(), abs=1e-4)


def test_positions_of_unknown_length_count_512() -> None:
    _, (decision,) = fused(Spelling(mask="positions", symbolic=True).model())
    assert decision.data["kind"] == "positions"
    assert decision.data["density"] == pytest.approx(np.tri(512).mean(), abs=1e-4)


@pytest.mark.parametrize(("mask", "kind"), [("none", "dense"), ("softcap", "dense"), ("alibi", "mask"),
                                            ("padding", "mask"), ("padding-bool", "mask"), ("bias", "mask")])
def test_nothing_is_hidden_for_certain(mask: str, kind: str) -> None:
    _, (decision,) = fused(Spelling(mask=mask).model())
    assert decision.data == {**decision.data, "kind": kind, "density": 1.0}


def test_what_a_run_adds_hides_nothing() -> None:
    spelling = Spelling(1, 2, 65, 65, 8, 8, mask="causal+padding")
    _, (decision,) = fused(spelling.model())
    assert decision.data["density"] == pytest.approx(np.tri(65).mean(), abs=1e-4)
