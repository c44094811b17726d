"""The real models run on their inputs, and the inputs mean something to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models import zoo_inputs as z
from models.zoo import ZooModel, survey

FOUND, SKIPPED = survey()
BY_NAME = {m.name: m for m in FOUND}


def _session(model: ZooModel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])


def _need(name: str) -> ZooModel:
    if name not in BY_NAME:
        pytest.skip(next(s.reason for s in SKIPPED if s.name == name))
    return BY_NAME[name]


def test_no_model_is_missing() -> None:
    if SKIPPED:
        pytest.skip(f"{len(SKIPPED)} models are missing: {'; '.join(f'{s.name}, {s.reason}' for s in SKIPPED)}")
    assert len(FOUND) == 12


@pytest.mark.parametrize("model", FOUND, ids=lambda m: m.name)
def test_runs_at_its_sizes_and_at_others(model: ZooModel) -> None:
    session = _session(model)
    cases = [(1, 1), (2, 1)] if model.name == "ppocr_det" else [(0, 1), (1, 1)]  # 640x640 is for the benchmark
    if "batch" in model.dynamic:
        cases.append((2, 2))
    for sample, batch in cases:
        feeds = model.inputs(sample, batch=batch)
        again = model.inputs(sample, batch=batch)
        assert all((feeds[k] == again[k]).all() for k in feeds)
        outputs = session.run(None, feeds)
        assert all(np.isfinite(o).all() for o in outputs)
        assert max(o.std() for o in outputs) > 1e-3


def test_a_fixed_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed batch of 1, not 2"):
        _need("silero_vad_static").inputs(batch=2)


def test_the_recogniser_reads_the_drawn_word() -> None:
    model = _need("ppocr_rec")
    letters = next(p.value for p in onnx.load(model.path).metadata_props if p.key == "character").split("\n")
    classes = ["", *letters, " "]
    best = _session(model).run(None, model.inputs(1, batch=1))[0][0].argmax(-1)
    text = "".join(classes[c] for i, c in enumerate(best) if c and (i == 0 or best[i - 1] != c))
    assert text.strip() == "HELLO"


def test_the_detector_finds_text_on_a_page_and_none_on_a_blank_one() -> None:
    model = _need("ppocr_det")
    session = _session(model)
    page = session.run(None, model.inputs(1, batch=1))[0]
    blank = session.run(None, {"x": np.full((1, 3, 192, 256), 0.86, np.float32)})[0]
    assert (page > 0.5).mean() > 0.05
    assert (blank > 0.5).mean() < 0.001


def test_the_direction_classifier_tells_upside_down() -> None:
    model = _need("ppocr_cls")
    session = _session(model)
    upright, turned = (session.run(None, model.inputs(sample, batch=6))[0] for sample in (0, 1))
    assert (upright.argmax(-1) == 0).mean() > 0.8
    assert (turned.argmax(-1) == 1).mean() > 0.8


def test_the_voice_detector_hears_the_signal_and_not_silence() -> None:
    model = _need("silero_vad_sequence")
    session = _session(model)
    feeds = model.inputs(1)
    heard = session.run(None, feeds)[0]
    silent = session.run(None, {**feeds, "input": np.zeros_like(feeds["input"])})[0]
    assert heard[5:].mean() > 0.5
    assert silent[5:].mean() < 0.1


def test_magika_knows_a_python_file() -> None:
    model = _need("magika")
    config = json.loads(model.path.with_name("config.min.json").read_text())
    labels = config["target_labels_space"]
    assert (config["beg_size"], config["end_size"], config["padding_token"]) == (1024, 1024, 256)
    features = z.file_features(Path(__file__))
    best = _session(model).run(None, {"bytes": features[None]})[0].argmax()
    assert labels[best] == "python"
