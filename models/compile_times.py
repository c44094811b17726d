"""Seconds that `tilegraph optimize` takes as a user runs it: whole processes, with an empty and a filled kernel cache.

The bytecode of modules is cached as Python does where nobody forbids it; the first process writes it, too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from models import builders

ROUNDS = 5  # with a filled cache


@dataclass(frozen=True)
class Compiled:
    """A model and the seconds allowed with an empty and with a filled kernel cache."""

    label: str
    path: Path
    cold: float
    warm: float


def compiled() -> list[Compiled]:
    return [Compiled("a BERT layer", builders.path("bert"), 10, 3),
            Compiled("BERT x12", builders.path("bert", layers=12), 20, 3),
            Compiled("ResNet-50", builders.path("resnet50"), 60, 3)]


def compile_times() -> list[str]:
    """A line for each model: seconds, the median with a filled cache, and whether they are allowed."""
    return [line for one in compiled() for line in _lines(one)]


def _lines(one: Compiled) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="tilegraph-compile-") as folder:
        try:
            cold, *warm = [_seconds(one.path, Path(folder)) for _ in range(1 + ROUNDS)]
        except subprocess.CalledProcessError as error:
            return [f"optimize of {one.label}: failed: {error.stderr.strip().splitlines()[-1:]}"]
    middle = statistics.median(warm)
    return [f"optimize of {one.label} with an empty kernel cache: {cold:.1f} s, {one.cold:g} allowed: "
            f"{_verdict(cold, one.cold)}",
            f"optimize of {one.label} with a filled kernel cache: {middle:.2f} s [{min(warm):.2f}, {max(warm):.2f}], "
            f"{one.warm:g} allowed: {_verdict(middle, one.warm)}"]


def _seconds(model: Path, folder: Path) -> float:
    """One process. Raises CalledProcessError where it fails."""
    environment = {**os.environ, "TILEGRAPH_CACHE_DIR": str(folder / "kernels"),
                   "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "tilegraph", "optimize", str(model), "-o", str(folder / "out"), "--force", "-q"]
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return time.perf_counter() - start


def _verdict(seconds: float, allowed: float) -> str:
    return "pass" if seconds <= allowed else "short"
