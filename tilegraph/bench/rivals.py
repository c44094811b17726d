"""The best that others make of a model: graph tools whose output ONNX Runtime runs, and other engines.

Every one is checked against the answers of the original in ONNX Runtime without optimizations. One that fails, or
computes something else, is named with the reason and takes no part.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilegraph.bench.answers import difference, quantised
from tilegraph.bench.engines import Array
from tilegraph.bench.kinds import Found
from tilegraph.bench.peers import Peer
from tilegraph.bench.process import WorkerDied, WorkerProcess
from tilegraph.errors import InputError

TOOL_TIMEOUT_S = 600.0
CHECK_TIMEOUT_S = 300.0
ORIGINAL = "original without optimizations"


@dataclass(frozen=True)
class Rival:
    """`peer` is what to time; None with the `reason` (absent, failed, wrong answers). `error` is the largest error of
    its answers relative to an output's largest value, NaN if there were none to compare."""

    name: str
    versions: str = ""
    peer: Peer | None = None
    reason: str = ""
    error: float = math.nan

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "versions": self.versions, "reason": self.reason, "timed": self.peer is not None,
                "error": None if math.isnan(self.error) else self.error}


def rivals(original: Path, feeds: Mapping[str, Array], found: Sequence[Found], cache: Path,
           special: Sequence[Peer] = (), *, loose: bool = False) -> list[Rival]:
    """What takes part against `original` on `feeds`: one entry for each general kind in `found` and each of `special`
    (peers that were made for this model). Files of graph tools are kept under `cache`. `loose`: a lower precision was
    asked for, so answers may be as far off as those of quantised models.

    Raises InputError or WorkerDied if the original itself does not run.
    """
    entries: list[Rival] = []
    made: dict[bytes, str] = {}
    for one in found:
        if not one.kind.general:
            continue
        versions = ", ".join(f"{name} {version}" for name, version in one.versions)
        entry = Rival(one.kind.name, versions, reason=f"absent: {one.absent}" if one.absent else "")
        if not one.absent and one.kind.tool:
            entry = _tool(entry, original, one, cache, made)
        elif not one.absent:
            sizes = {name: json.dumps(a.shape) for name, a in feeds.items()} if one.kind.fixed else {}
            entry = replace(entry, peer=Peer(one.kind.name, original, engine=one.kind.engine, python=one.python,
                                             provider_options=sizes, create=False))
        entries.append(entry)
    entries += [Rival(peer.name, peer=peer) for peer in special]
    if not any(e.peer for e in entries):
        return entries
    wanted = _answers(Peer(ORIGINAL, original, optimization="disable"), feeds)
    loose = loose or quantised(original)
    return [_checked(entry, feeds, wanted, loose) for entry in entries]


def _tool(entry: Rival, original: Path, found: Found, cache: Path, made: dict[bytes, str]) -> Rival:
    try:
        file = tool_output(original, found, cache)
    except InputError as error:
        return replace(entry, reason=str(error))
    digest = hashlib.sha256(file.read_bytes()).digest()
    if digest in made:
        return replace(entry, reason=f"the same file as {made[digest]}'s")
    made[digest] = entry.name
    return replace(entry, peer=Peer(entry.name, file, create=False))


def tool_output(original: Path, found: Found, cache: Path) -> Path:
    """The file that a graph tool makes of `original`, made once for each content and version. InputError with the
    tool's last words when it fails."""
    versions = "-".join(version for _, version in found.versions)
    file = cache.resolve() / _fingerprint(original) / f"{found.kind.name}-{versions}.onnx"
    if file.is_file():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        output = Path(scratch) / "model.onnx"
        command = [found.python, "-m", "tilegraph.bench.graph_tool", found.kind.name, str(original.resolve()),
                   str(output)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False,
                                  env=environment, cwd=scratch, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise InputError(f"failed: {found.kind.name} took more than {TOOL_TIMEOUT_S:.0f} s") from error
        if done.returncode or not output.is_file():
            words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}, no output"]
            raise InputError(f"failed: {words[0]}")
        others = [p.name for p in Path(scratch).iterdir() if p != output]
        if others:  # weights beside the model would be lost with the folder
            raise InputError(f"failed: {found.kind.name} wrote {', '.join(sorted(others))} beside the model")
        output.replace(file)
    return file


def _fingerprint(model: Path) -> str:
    """Of the file and the external data that it names."""
    import onnx

    hashed = hashlib.sha256(model.read_bytes())
    for tensor in onnx.load(model, load_external_data=False).graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                data = (model.parent / entry.value).stat()
                hashed.update(f"{entry.value} {data.st_size} {data.st_mtime_ns}".encode())
    return hashed.hexdigest()[:24]


def _answers(peer: Peer, feeds: Mapping[str, Array]) -> list[Array]:
    with tempfile.TemporaryDirectory(prefix="tilegraph-peer-") as scratch, \
            WorkerProcess(peer, None, timeout_s=CHECK_TIMEOUT_S) as worker:
        fed, answered = Path(scratch) / "feeds.npz", Path(scratch) / "answers.npz"
        np.savez(fed, *feeds.values())
        worker.ask("open", peer=worker.describe(), threads=1, feeds=str(fed), names=list(feeds))
        worker.ask("outputs", file=str(answered))
        with np.load(answered, allow_pickle=False) as arrays:
            return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def _checked(entry: Rival, feeds: Mapping[str, Array], wanted: Sequence[Array], loose: bool) -> Rival:
    """`entry` without its peer and with the reason when its answers are wrong or it does not run."""
    if entry.peer is None:
        return entry
    try:
        error, problem = difference(_answers(entry.peer, feeds), wanted, quantised=loose)
    except (InputError, WorkerDied) as failure:
        return replace(entry, peer=None, reason=f"failed: {failure}")
    if problem:
        return replace(entry, peer=None, reason=f"wrong answers: {problem}", error=error)
    return replace(entry, error=error)
