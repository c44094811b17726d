"""Serving a folder as machines and sessions do that a small graph does not show: every call in as many tasks as it has
units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilegraph.spec.artifact import Manifest, Program
from tilegraph.spec.dims import Dim


def finely(made: Any) -> Any:
    """`made`, a compiled model, whose calls are cut as finely as their kernels allow: small graphs are otherwise run in
    one piece, and nothing begins anywhere but at 0."""
    manifest: Manifest = made.manifest
    made.manifest = replace(manifest, programs={n: _finely(p) for n, p in manifest.programs.items()})
    return made


def _finely(program: Program) -> Program:
    return replace(program, calls=tuple(replace(c, grain=Dim.of(1)) for c in program.calls))
