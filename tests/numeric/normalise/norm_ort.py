"""ONNX Runtime on the CPU with graph optimizations off: the reference of the numeric tests here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

Arrays = dict[str, np.ndarray[Any, Any]]


def session(model: str | bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: str | bytes | onnx.ModelProto | ir.Model, feeds: Mapping[str, Any]) -> Arrays:
    """The outputs by name. The model may be a path, bytes, a proto or an ir.Model."""
    if isinstance(model, ir.Model):
        model = ir.to_proto(model)
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    made = session(model)
    names = [o.name for o in made.get_outputs()]
    return dict(zip(names, made.run(names, dict(feeds)), strict=True))


def corpus_feeds(path: Path) -> list[Arrays]:
    """The input sets of a corpus model: one, or two for exports with dynamic axes."""
    arrays = np.load(path.with_suffix(".npz"))
    found = [{k.removeprefix(p): arrays[k] for k in arrays.files if k.startswith(p)} for p in ("in_", "alt_in_")]
    return [f for f in found if f]


def catalog(folder: Path) -> dict[str, dict[str, str]]:
    """Rows of CATALOG.csv by name."""
    import csv

    with (folder / "CATALOG.csv").open(newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def spread(paths: Sequence[Path], step: int) -> list[Path]:
    """Every `step`-th path of a sorted list: the same ones on every machine."""
    return list(paths)[::step]
