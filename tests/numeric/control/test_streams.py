"""silero-vad over a stream with state: every export that takes one frame at a time, both rates, several streams.

Each engine keeps its own state over 50 frames, so errors add up; each frame is compared from the same state, too.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from models import zoo_inputs as z
from models.zoo import ZooModel, survey
from tilegraph.compiler import OptimizedModel, optimize

FOUND, SKIPPED = survey()
STEPS = {m.name: m for m in FOUND if m.name.startswith("silero_vad") and m.name != "silero_vad_sequence"}
FRAMES = 50
Session = ort.InferenceSession


def _original(model: ZooModel) -> Session:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return Session(str(model.path), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def made() -> dict[str, OptimizedModel]:
    return {name: optimize(model.path) for name, model in STEPS.items()}


@pytest.mark.parametrize(("name", "rate", "batch"), [
    ("silero_vad", 16000, 1), ("silero_vad", 8000, 2), ("silero_vad_16k", 16000, 3), ("silero_vad_half", 16000, 1),
    ("silero_vad_ifless", 16000, 2), ("silero_vad_ifless", 8000, 1), ("silero_vad_static", 16000, 1)])
def test_a_stream(made: dict[str, OptimizedModel], name: str, rate: int, batch: int) -> None:
    if name not in STEPS:
        pytest.skip("; ".join(s.reason for s in SKIPPED if s.name == name))
    theirs, ours = _original(STEPS[name]), made[name].session(1)
    size, context = (512, 64) if rate == 16000 else (256, 32)
    rng = np.random.default_rng(7)
    streams = np.stack([z.speech_frames(rng, FRAMES, size, context) for _ in range(batch)], 1)  # [frames, batch, size]
    more = {"sr": np.array(rate)} if any(i.name == "sr" for i in theirs.get_inputs()) else {}
    state = own = np.zeros((2, batch, 128), np.float32)
    heard = []
    for frame in streams:
        expected, after = theirs.run(None, {"input": frame, "state": state, **more})
        actual, close = ours.run(None, {"input": frame, "state": state, **more})
        for a, b in ((actual, expected), (close, after)):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert np.abs(a - b).max() <= 1e-5 * max(1.0, np.abs(b).max())
        kept, own = ours.run(None, {"input": frame, "state": own, **more})
        assert np.abs(kept - expected).max() <= 1e-4
        state = after
        heard.append(expected)
    assert np.ptp(np.array(heard)) > 0.1, "the detector heard nothing: equal answers would prove little"


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_16k", "silero_vad_half"])
def test_frames_that_the_original_refuses_are_refused(made: dict[str, OptimizedModel], name: str) -> None:
    """Three times as long: the encoder leaves more than one position, and no branch takes those."""
    if name not in STEPS:
        pytest.skip("the model is missing")
    feeds = {**STEPS[name].inputs(0), "input": np.zeros((1, 3 * 576), np.float32)}
    for session in (_original(STEPS[name]), made[name].session(1)):
        with pytest.raises(Exception, match=r"Squeeze|rank|dim"):
            session.run(None, feeds)
    feeds["input"] = z.speech_frames(np.random.default_rng(3), 1)
    assert np.isfinite(made[name].session(1).run(None, feeds)[0]).all()


def test_no_condition_is_left_but_that_on_the_rate(made: dict[str, OptimizedModel]) -> None:
    for name, model in made.items():
        conditions = [n for n in model.model.graph.all_nodes() if n.op_type == "If"]
        assert len(conditions) == (1 if name in ("silero_vad", "silero_vad_ifless") else 0), name
