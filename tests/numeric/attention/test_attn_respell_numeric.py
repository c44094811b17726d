"""Changed spellings give the same answers: the rewritten model in ONNX Runtime, from the bodies of its composites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import tilegraph
from tests.unit.attention.attn_support import fused
from tests.unit.attention.test_attn_respell import CHANGED, SHAPES, spelled
from tilegraph.compiler import optimize


@pytest.mark.parametrize("name", list(CHANGED))
def test_answers(name: str) -> None:
    before = spelled(name)
    after, decisions = fused(before)
    assert decisions[0].taken
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.standard_normal(SHAPES[i.name]).astype(np.float32) for i in before.graph.input}
    want, got = (ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
                 for m in (before, ir.to_proto(after)))
    assert np.std(want) > 1e-2
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-6 * max(1.0, float(np.abs(want).max()))


def test_blocks_that_are_served(tmp_path: Path) -> None:
    """Keys of several blocks lie transposed when they are concatenated: not a cache that the kernel can make."""
    before = spelled("blocks")
    optimize(before.SerializeToString(), offload="all").save(tmp_path / "m")
    tilegraph.register()
    served = ort.InferenceSession(str(tmp_path / "m" / "model.onnx"),
                                  providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    original = ort.InferenceSession(before.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.standard_normal(SHAPES[i.name]).astype(np.float32) for i in before.graph.input}
    want, got = (s.run(None, feeds)[0] for s in (original, served))
    assert np.std(want) > 1e-2
    assert np.abs(got - want).max() <= 2e-6 * max(1.0, float(np.abs(want).max()))
