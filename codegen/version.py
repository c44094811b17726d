"""What every cache key holds, without importing TVM, which takes a second."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

TVM_VERSION = version("apache-tvm")


def _sources() -> list[Path]:
    """Everything that decides a kernel's code: how regions are lowered and planned, and how kernels are emitted."""
    package = Path(__file__).parent.parent
    return sorted(path for part in ("codegen", "ops", "spec") for path in (package / part).rglob("*.py"))


def _digest() -> str:
    # By contents: a number to be raised by hand was forgotten, and stale kernels gave wrong answers.
    digest = hashlib.sha256()
    for path in _sources():
        data = path.read_bytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


GENERATOR = _digest()
