"""Spellings composed at random, through the pass and the kernel, against float64 and against ONNX Runtime.

TILEGRAPH_EXAMPLES sets how many are tried.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.numeric.attention.attn_runner import compile_attention, run
from tests.unit.attention.composed import composed
from tests.unit.attention.spellings import Spelling

EXAMPLES = int(os.environ.get("TILEGRAPH_EXAMPLES", "16"))


@st.composite
def spellings(draw: st.DrawFn) -> Spelling:
    made = composed(lambda choices: draw(st.sampled_from(choices)), lambda low, high: draw(st.integers(low, high)),
                    symbolic=draw(st.booleans()))
    return replace(made, symbolic=made.symbolic and made.queries != made.keys)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=(Phase.generate,),
          suppress_health_check=list(HealthCheck))
@given(spelling=spellings())
def test_random_spellings(spelling: Spelling) -> None:
    model = spelling.model()
    compiled, _, graph = compile_attention(model)
    feeds = spelling.feeds()
    got, want = run(compiled, graph, feeds, tasks=2, offset=4), spelling.answer(feeds)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    runtime = session.run(None, feeds)[0]
    assert np.array_equal(np.isnan(got), np.isnan(runtime))
    finite = np.isfinite(want)
    scale = float(np.abs(want[finite]).max(initial=0))
    bound = max(2 * float(np.abs(runtime[finite] - want[finite]).max(initial=0)), 4 * np.finfo(np.float32).eps * scale)
    assert float(np.abs(got[finite] - want[finite]).max(initial=0)) <= bound


@pytest.mark.parametrize("mask", ["causal-inf", "causal-min"])
def test_long_sequences_keep_their_accuracy(mask: str) -> None:
    spelling = Spelling(1, 1, 1024, 1024, 64, 64, mask=mask)
    compiled, _, graph = compile_attention(spelling.model())
    feeds = spelling.feeds()
    feeds["q"] *= 3
    error = np.abs(run(compiled, graph, feeds) - spelling.answer(feeds)).max()
    assert 0 < error <= 5e-6


def test_large_weights_and_many_small_ones() -> None:
    """Queries that are their own keys: one weight dominates, thousands of small ones are added to it."""
    spelling = Spelling(1, 2, 2048, 2048, 64, 64)
    model = spelling.model()
    compiled, _, graph = compile_attention(model)
    value = np.random.default_rng(0).standard_normal((1, 2, 2048, 64)).astype(np.float32)
    feeds = dict.fromkeys("qkv", value)
    want = spelling.answer(feeds)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    runtime = float(np.abs(session.run(None, feeds)[0] - want).max())
    bound = max(2 * runtime, 4 * np.finfo(np.float32).eps * float(np.abs(want).max()))
    assert float(np.abs(run(compiled, graph, feeds) - want).max()) <= bound
