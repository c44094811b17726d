"""A decoder whose positions and mask have lengths of their own: attention once the caller says what those are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tilegraph.compiler import optimize

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    decoder (float[b, n, 32] tokens, float[b, m, 32] positions, float[b, 2, past, 16] old, float[b, 1, n, total] mask)
        => (float[b, heads, length, 16] y)
        <int64[4] split = {0, 0, 2, 16}> {
        x = Add(tokens, positions) parts = Reshape(x, split) q = Transpose<perm = [0, 2, 1, 3]>(parts)
        keys = Concat<axis = 2>(old, q) t = Transpose<perm = [0, 1, 3, 2]>(keys) s = MatMul(q, t) z = Add(s, mask)
        p = Softmax<axis = -1>(z) y = MatMul(p, keys)
    }"""


def feeds(n: int, past: int, total: int, positions: int | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(n + past)
    shapes = {"tokens": (3, n, 32), "positions": (3, positions or n, 32), "old": (3, 2, past, 16)}
    hidden = rng.random((3, 1, n, total)) < 0.3
    hidden[..., 0] = False
    return {**{name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()},
            "mask": np.where(hidden, -3e38, 0).astype(np.float32)}


def test_lengths_that_follow_from_others_make_it_attention() -> None:
    model = onnx.parser.parse_model(MODEL)
    (left,) = optimize(model, offload="all", dry_run=True).summary.attentions
    assert not left["taken"]
    assert "unknown" in left["reason"]
    made = optimize(model, offload="all", dims={"m": "n", "total": "past+n"})
    (taken,) = made.summary.attentions
    assert taken["taken"]
    session = made.session(threads=1)
    original = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, past in ((1, 7), (5, 3), (2, 0), (40, 1)):
        given = feeds(n, past, past + n)
        (ours,), (theirs,) = session.run(None, given), original.run(None, given)
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    original.run(None, feeds(5, 3, 8, positions=1))  # which broadcast
    with pytest.raises(Exception, match=r"positions.* 1"):  # ONNX Runtime's exceptions have no common base
        session.run(None, feeds(5, 3, 8, positions=1))
    with pytest.raises(Exception, match=r"mask.* 9"):
        session.run(None, feeds(5, 3, 9))
