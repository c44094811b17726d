from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import pytest

import tilegraph.runtime as runtime


@pytest.fixture(scope="session")
def compile_kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """C source -> library; the same source is compiled once."""
    done: dict[tuple[str, ...], Path] = {}

    def build(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in done:
            done[key] = ep.compile_c(source, tmp_path_factory.mktemp("kernels") / "k.so", *flags)
        return done[key]

    return build


@pytest.fixture(scope="session")
def add_one(compile_kernels: Callable[..., Path]) -> Path:
    return compile_kernels(ep.ADD_ONE)


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., Any]:
    """Artifact -> session; options as for `tilegraph.runtime.session`."""
    made = 0

    def start(artifact: ep.Artifact, **options: Any) -> Any:
        nonlocal made
        made += 1
        return runtime.session(artifact.write(tmp_path / f"model{made}"), **options)

    return start
