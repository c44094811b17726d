"""Serving a folder as machines and callers do that a small graph does not show: every call in as many tasks as it has
units, on arrays that lie anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.fuzz.values import Array
from tilegraph.spec.artifact import Manifest, Program
from tilegraph.spec.dims import Dim


def finely(made: Any) -> Any:
    """`made`, a compiled model, whose calls are cut as finely as their kernels allow: small graphs are otherwise run in
    one piece, and nothing begins anywhere but at 0."""
    manifest: Manifest = made.manifest
    made.manifest = replace(manifest, programs={n: _finely(p) for n, p in manifest.programs.items()})
    return made


def anywhere(feeds: dict[str, Array]) -> dict[str, Array]:
    """Copies that begin one element behind an address that vectors like: ONNX Runtime hands them on as they are."""
    return {name: _behind(value) for name, value in feeds.items()}


def _behind(value: Array) -> Array:
    memory = np.empty(value.size + 64 // value.itemsize + 1, value.dtype)
    first = -memory.ctypes.data % 64 // value.itemsize + 1
    made = memory[first:first + value.size].reshape(value.shape)
    made[...] = value
    return made


def _finely(program: Program) -> Program:
    return replace(program, calls=tuple(replace(c, grain=Dim.of(1)) for c in program.calls))
