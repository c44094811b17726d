"""What verify is given: the original, and the candidates that must agree with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tilegraph.emit.context import is_ours
from tilegraph.errors import InputError
from tilegraph.io.parse import read_proto
from tilegraph.spec.artifact import MANIFEST_FILE, MODEL_FILE, PORTABLE_FILE, REPORT_FILE


@dataclass(frozen=True)
class Candidate:
    """A model to compare; `plugin` says that it needs the plugin execution provider."""

    of: str  # "optimized" or "portable"
    path: Path
    plugin: bool


def original_path(original: str | Path) -> Path:
    """The .onnx file; InputError for a folder or a missing file."""
    path = Path(original)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; the first argument is the original .onnx file")
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return path


def candidates(optimized: str | Path) -> list[Candidate]:
    """The model of a .tilegraph folder (and its portable form if it has one), or one .onnx file."""
    path = Path(optimized)
    if path.is_dir():
        model, portable = path / MODEL_FILE, path / PORTABLE_FILE
        if not model.is_file():
            what = f"has no {MODEL_FILE}" + ("" if (path / MANIFEST_FILE).exists() else f" and no {MANIFEST_FILE}")
            raise InputError(f"{path}: not a tilegraph folder ({what}); make one with `tilegraph optimize`")
        found = [Candidate("optimized", model, needs_plugin(model))]
        return [*found, Candidate("portable", portable, False)] if portable.is_file() else found
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder")
    return [Candidate("optimized", path, needs_plugin(path))]


def made_with(optimized: str | Path) -> dict[str, Any]:
    """The options that a folder's report says it was made with; none for anything else."""
    try:
        return dict(json.loads((Path(optimized) / REPORT_FILE).read_text(encoding="utf-8"))["options"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def frozen_dims(optimized: str | Path) -> dict[str, int | str]:
    """The dims that a folder's report says were given when it was made; none for anything else."""
    try:
        given = made_with(optimized)["dims"].items()
        return {str(name): size if isinstance(size, str) else int(size) for name, size in given}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_model(path: str | Path) -> ir.Model:
    """The model with its weights memory-mapped; InputError if the file is missing, broken or holds no graph."""
    try:
        model = ir.load(str(path))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except Exception as error:
        read_proto(Path(path))  # says it better where the file itself is at fault: truncated, a Git LFS pointer, ...
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{path}: not a readable ONNX model ({first})") from error
    if not model.graph.outputs:
        read_proto(Path(path))  # an empty file is a valid protobuf message
        raise InputError(f"{path}: not an ONNX model: its graph has no outputs")
    return model


def needs_plugin(path: Path) -> bool:
    """Whether the model at `path` has EPContext nodes of ours, in bodies of control flow too. Raises InputError."""
    return any(is_ours(node) for node in read_model(path).graph.all_nodes())
