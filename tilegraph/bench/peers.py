"""What is compared: a model file and what runs it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilegraph.bench.engines import ENGINES
from tilegraph.errors import InputError
from tilegraph.spec.artifact import EP_NAME, MANIFEST_FILE, MODEL_FILE

CPU = "CPUExecutionProvider"
OPTIMIZATIONS = ("all", "layout", "extended", "basic", "disable")


@dataclass(frozen=True)
class Peer:
    """One side of a comparison.

    `name` is for people; `path` is an .onnx file; `provider` comes first in the session, before the CPU provider;
    `options` are ONNX Runtime session config entries, `provider_options` the provider's own, `optimization` the graph
    optimization level, `environment` variables of the worker process. `engine` is what runs the file (`ENGINES`); for
    OpenVINO, `options` are properties of compile_model. `python`: the interpreter of the worker, this one by default.
    `create=False` leaves its session creation out of what is timed.
    """

    name: str
    path: Path
    provider: str = CPU
    options: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    optimization: str = "all"
    engine: str = "onnxruntime"
    python: str = sys.executable
    create: bool = True

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine is one of {', '.join(ENGINES)}, not {self.engine!r}")
        if self.optimization not in OPTIMIZATIONS:
            raise ValueError(f"optimization is one of {', '.join(OPTIMIZATIONS)}, not {self.optimization!r}")

    @property
    def runs_on(self) -> str:
        """The provider in ONNX Runtime, or the other engine's name."""
        return self.provider if self.engine == "onnxruntime" else self.engine


def peer_for(source: str | Path) -> Peer:
    """The peer for a path: an optimized folder, or the model.onnx in one, runs on the plugin provider; any other .onnx
    file runs on ONNX Runtime's CPU provider with all optimizations, or on the plugin if it holds EPContext nodes of
    ours (an embedded model). Raises InputError for anything else."""
    from tilegraph.verify.source import needs_plugin  # here: a worker of another interpreter has no onnx_ir

    path = Path(source)
    if path.is_dir():
        if not (path / MANIFEST_FILE).is_file() or not (path / MODEL_FILE).is_file():
            raise InputError(f"{path}: a folder without {MANIFEST_FILE} and {MODEL_FILE}, so not one that "
                             "`tilegraph optimize` wrote; give an .onnx file or such a folder")
        return Peer(path.name or str(source), path / MODEL_FILE, EP_NAME)
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder")
    if path.name == MODEL_FILE and (path.parent / MANIFEST_FILE).is_file():
        return Peer(f"{path.parent.name}/{path.name}", path, EP_NAME)
    return Peer(path.name, path, EP_NAME if needs_plugin(path) else CPU)
