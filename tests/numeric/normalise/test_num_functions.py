"""Function bodies in the place of their operators compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from tests.unit.fusion.parse import model, proto
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import ExpandFunctions

LOSS = "(float[4,5] x, int64[4] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }"


@pytest.mark.parametrize(("text", "feeds"), [
    (LOSS, {"x": (4, 5), "t": 4}),
    ("(float[4,5] x, int64[4] t) => (float[4] y, float[4,5] p) { "
     'y, p = SoftmaxCrossEntropyLoss<reduction="none", ignore_index=2>(x, t) }', {"x": (4, 5), "t": 4}),
    ('(float[4,5] x, int64[4] t, float[5] w) => (float y) { y = NegativeLogLikelihoodLoss<reduction="sum">(x, t, w) }',
     {"x": (4, 5), "t": 4, "w": (5,)}),
])
def test_the_body_computes_the_same(text: str, feeds: dict[str, tuple[int, ...] | int], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = {k: rng.integers(0, 5, s) if isinstance(s, int) else rng.normal(size=s).astype(np.float32)
              for k, s in feeds.items()}
    made = model(text, 17)
    assert ExpandFunctions().run(made, PassContext()).modified
    ir.save(made, tmp_path / "expanded.onnx")
    (tmp_path / "original.onnx").write_bytes(proto(text, 17).SerializeToString())
    original, expanded = (
        ort.InferenceSession(str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"]).run(None, values)
        for name in ("original", "expanded"))
    for a, b in zip(original, expanded, strict=True):
        assert np.abs(a - b).max() <= 1e-6 * np.abs(a).max()
