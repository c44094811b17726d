"""What `optimize` gives: the emitted model, what was decided, and how to save and serve it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.emit import write_folder
from tilegraph.errors import UsageError
from tilegraph.spec.artifact import MODEL_FILE, Manifest

if TYPE_CHECKING:
    import onnxruntime

Source = str | Path | bytes | onnx.ModelProto | ir.Model


@dataclass
class Summary:
    """What was done, with the field names of docs/json.md."""

    model: str
    target: str
    nodes_before: int
    nodes_after: int = 0
    regions: int = 0
    partitions: int = 0
    engines: dict[str, int] = field(default_factory=dict)
    attentions: list[dict[str, Any]] = field(default_factory=list)
    layout_conversions: list[dict[str, Any]] = field(default_factory=list)
    weights: list[dict[str, Any]] = field(default_factory=list)
    tuned: list[Mapping[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class OptimizedModel:
    """The result of `optimize`: `save` it as a folder, or open a `session` on it."""

    def __init__(self, source: Source, model: ir.Model, summary: Summary, diagnostics: Diagnostics,
                 manifest: Manifest | None, library: bytes, portable: Callable[[], ir.Model]) -> None:
        self.source = source
        self.model = model
        self.summary = summary
        self.diagnostics = diagnostics
        self.manifest = manifest
        self._library = library
        self._portable = portable
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def portable(self) -> ir.Model:
        """The rewritten model before emission: composites have bodies, so any ONNX Runtime runs it."""
        return self._portable()

    def report(self) -> dict[str, Any]:
        """The summary's fields and `decisions`, every one that was taken or refused, as docs/json.md says."""
        return {**self.summary.to_json(), "decisions": self.diagnostics.to_json()}

    def save(self, path: str | Path, *, force: bool = False, embed: bool = False, portable: bool = False) -> Path:
        """Writes the folder `path` (with `embed` one .onnx file), whole or not at all, and returns it.

        Raises `InputError` if the place cannot be used, `UsageError` after a dry run.
        """
        if self.manifest is None:
            raise UsageError("nothing was compiled in a dry run; optimize without dry_run to save")
        with tempfile.TemporaryDirectory(prefix="tilegraph-") as folder:
            library = Path(folder) / self.manifest.library.file if self._library else None
            if library is not None:
                library.write_bytes(self._library)
            report = {**self.report(), "seconds": {}}  # without times: the same model gives the same folder
            manifest = replace(self.manifest, report=report)
            sources = [Path(self.source)] if isinstance(self.source, (str, Path)) else []
            return write_folder(Path(path), self.model, manifest, library, force=force, embed=embed,
                                portable=self.portable if portable else None, sources=sources)

    def session(self, threads: int | None = None) -> onnxruntime.InferenceSession:
        """An ONNX Runtime session on the result, saved to a temporary folder that lives as long as this object."""
        import importlib

        runtime = importlib.import_module("tilegraph.runtime")  # by name: the compiler does not depend on it
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tilegraph-")
            self.save(Path(self._folder.name) / "model.tilegraph")
        return runtime.session(Path(self._folder.name) / "model.tilegraph" / MODEL_FILE, threads=threads)
