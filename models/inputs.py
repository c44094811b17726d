"""Seeded inputs for the built models and chains, from the names and types of the graph's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from tilegraph.spec.dims import Dim

Feeds = dict[str, npt.NDArray[Any]]


def inputs_for(model: onnx.ModelProto | Path, *, seed: int = 0, dims: Mapping[str, int] | None = None,
               padded: bool = True) -> Feeds:
    """One feed for each graph input. Symbolic dims come from `dims`; `KeyError` names one that is missing.

    attention_mask: ones, then padding zeros at the end of each row but at least half real; all ones without `padded`.
    *_ids: below the model's vocab_size (two kinds for token_type_ids). Images: coloured patches. Other floats:
    standard normal.
    """
    if isinstance(model, Path):
        model = onnx.load(model, load_external_data=False)
    rng = np.random.default_rng(seed)
    vocab = next((int(p.value) for p in model.metadata_props if p.key == "vocab_size"), 100)
    weights = {t.name for t in model.graph.initializer}
    return {v.name: _one(v, rng, vocab, dims or {}, padded) for v in model.graph.input if v.name not in weights}


def _one(value: onnx.ValueInfoProto, rng: np.random.Generator, vocab: int,
         dims: Mapping[str, int], padded: bool) -> npt.NDArray[Any]:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else Dim.of(d.dim_param).evaluate(dims) for d in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if value.name == "attention_mask":
        length = shape[-1]
        if not padded:
            return np.ones(shape, dtype)
        real = rng.integers((length + 1) // 2, length + 1, shape[0])
        if length % 2:  # one full row, so that the unmasked case is always there
            real[0] = length
        return (np.arange(length)[None] < real[:, None]).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 2 if value.name == "token_type_ids" else vocab, shape).astype(dtype)
    if value.name == "image":
        return _images(rng, shape).astype(dtype)
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def _images(rng: np.random.Generator, shape: list[int]) -> npt.NDArray[np.float32]:
    """Normalised images [B, 3, H, W] of a few coloured patches with some noise. White noise would do harm: it averages
    to the same features in every image, and a network's answer then hardly depends on its input."""
    batch, channels, height, width = shape
    y, x = np.mgrid[0:1:height * 1j, 0:1:width * 1j]
    images = rng.standard_normal((batch, channels, 1, 1)) + 0.2 * rng.standard_normal(shape)
    for image in images:
        for _ in range(6):
            top, left, radius = rng.random(3)
            patch = np.exp(-((y - top) ** 2 + (x - left) ** 2) / (0.02 + 0.1 * radius))
            image += 2 * rng.standard_normal((channels, 1, 1)) * patch
    return np.asarray(images, np.float32)
