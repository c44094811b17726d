"""The peers of others that there are, and where each is installed: in this interpreter or in one given for peers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tilegraph.errors import UsageError

PYTHON_VARIABLE = "TILEGRAPH_PEERS_PYTHON"


@dataclass(frozen=True)
class Kind:
    """`needs`: distributions that its interpreter must have. `engine`: what runs the model; a `tool` writes one that
    ONNX Runtime then runs. `general`: it takes any model, so it is tried on each. `fixed`: it is told the sizes of the
    inputs, which the others see at run time."""

    name: str
    needs: tuple[str, ...]
    engine: str = "onnxruntime"
    tool: bool = False
    general: bool = True
    fixed: bool = False


KINDS = {kind.name: kind for kind in (
    Kind("onnxsim", ("onnxsim", "onnx"), tool=True),
    Kind("onnxscript", ("onnxscript", "onnx-ir"), tool=True),
    Kind("transformers", ("onnxruntime", "onnx", "torch"), tool=True),
    Kind("openvino", ("openvino", "numpy"), "openvino"),
    Kind("openvino-fixed", ("openvino", "numpy"), "openvino", fixed=True),
    Kind("torch-sdpa", ("torch", "numpy"), "torch-sdpa", general=False),
)}


@dataclass(frozen=True)
class Found:
    """Where a kind of peer is: `python` is the interpreter, `versions` those of what it needs. `absent` says why it
    cannot take part; then `python` is empty."""

    kind: Kind
    python: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    absent: str = ""

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions)
        return f"{self.kind.name} ({versions})" if not self.absent else f"{self.kind.name}: absent, {self.absent}"


def find(names: Sequence[str] | None = None, peers_python: str | None = None) -> tuple[Found, ...]:
    """One entry for each of `names` (all by default), present or absent.

    `peers_python` (by default the environment's TILEGRAPH_PEERS_PYTHON) is asked after this interpreter. Raises
    UsageError for a name that is not in KINDS or an interpreter that does not run.
    """
    unknown = [n for n in names or () if n not in KINDS]
    if unknown:
        raise UsageError(f"no peer {', '.join(unknown)}; there are: {', '.join(KINDS)}")
    chosen = [KINDS[n] for n in (KINDS if names is None else dict.fromkeys(names))]
    other = peers_python or os.environ.get(PYTHON_VARIABLE) or None
    if other:  # absolute, for tools run elsewhere; not resolved, since a link is what makes an interpreter a venv's
        other = os.path.abspath(shutil.which(other) or other)
    wanted = sorted({need for kind in chosen for need in kind.needs})
    pythons = [sys.executable, *([other] if other else [])]
    have = {python: versions(python, wanted) for python in pythons} if chosen else {}
    return tuple(_found(kind, have) for kind in chosen)


def _found(kind: Kind, have: dict[str, dict[str, str]]) -> Found:
    for python, versions in have.items():
        if all(need in versions for need in kind.needs):
            return Found(kind, python, tuple((need, versions[need]) for need in kind.needs))
    best = max(have.values(), key=lambda v: sum(need in v for need in kind.needs))
    missing = [need for need in kind.needs if need not in best]
    where = f"nor in the one that {PYTHON_VARIABLE} or --peers-python names" if len(have) > 1 else \
        f"and neither {PYTHON_VARIABLE} nor --peers-python names another one"
    return Found(kind, absent=f"{', '.join(missing)} not installed in this interpreter, {where}")


_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions(python: str, distributions: Sequence[str]) -> dict[str, str]:
    """The versions of those distributions that the interpreter has. UsageError if it does not run."""
    try:
        done = subprocess.run([python, "-I", "-c", _ASK, *distributions], capture_output=True, text=True, timeout=60,
                              check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{python}, named for peers, does not run as a Python interpreter ({error}); correct "
                         f"{PYTHON_VARIABLE} or --peers-python") from error
    return dict(json.loads(done.stdout))
