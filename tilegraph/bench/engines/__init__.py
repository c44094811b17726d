"""What runs a model inside a worker: one module an engine, imported only in a worker that uses it.

An engine's module has `load(peer)`, which imports its libraries (no part of a session's creation), and
`create(peer, threads)`, which returns an Engine. `peer` is what `WorkerProcess.describe` sends.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ENGINES = {"onnxruntime": "ort", "openvino": "openvino", "torch-sdpa": "torch_sdpa"}


class Engine(Protocol):
    """A model ready to run."""

    def bind(self, feeds: dict[str, Array]) -> str:
        """Takes the inputs and runs once; says how runs are made: "bound" (same memory every time) or "plain"."""

    def run(self) -> None:
        """One run on the bound inputs."""

    def outputs(self) -> list[Array]:
        """The outputs of the last run, in the model's order."""


def module(name: str) -> Any:
    """The engine's module; `KeyError` for a name that is not in ENGINES."""
    return importlib.import_module(f"{__name__}.{ENGINES[name]}")


def chosen(wanted: list[str], feeds: dict[str, Array]) -> dict[str, Array]:
    """The feeds that a model wants; `ValueError` names those that are missing."""
    missing = [name for name in wanted if name not in feeds]
    if missing:
        raise ValueError(f"the inputs lack {', '.join(map(repr, missing))}; they have {', '.join(feeds) or 'none'}")
    return {name: feeds[name] for name in wanted}


def contiguous(array: Array) -> Array:
    """Rows in memory order; scalars keep their rank of 0."""
    return np.ascontiguousarray(array) if array.ndim else array
