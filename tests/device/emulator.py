"""Kernels for AArch64 on another machine: linked into a small program (harness.c) that QEMU's user emulation runs."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilegraph.codegen.library import STUB

Array = np.ndarray[Any, Any]
TRIPLE = "aarch64-linux-gnu"
_SCRATCH = 3
_REASONS = {2: "memory beside a buffer was overwritten", 3: "the harness could not read its input"}


class Memory(Protocol):
    """A buffer of the runner. `fence`: 0 guard bytes around it, else a page that nobody may touch, 1 before it or 2
    behind it; `address` for its alignment."""

    fence: int

    @property
    def inside(self) -> Array: ...

    @property
    def address(self) -> int: ...


def compiler() -> list[str] | None:
    """A C compiler and linker for AArch64 Linux: $AARCH64_CC, Debian's gcc-aarch64-linux-gnu, or ziglang of PyPI."""
    if wanted := os.environ.get("AARCH64_CC", "").strip():
        return shlex.split(wanted)
    if platform.machine() == "aarch64":
        return ["cc"]
    if found := shutil.which("aarch64-linux-gnu-gcc"):
        return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl"]
    return None


def emulator() -> list[str] | None:
    """What runs a program for AArch64 here: nothing on AArch64 itself, else $QEMU_AARCH64 or QEMU's user emulation."""
    if platform.machine() == "aarch64":
        return []
    if wanted := os.environ.get("QEMU_AARCH64", "").strip():
        return shlex.split(wanted)
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    return [found] if found else None


def missing() -> str:
    """What is not installed, and how to install it; "" if kernels can be run."""
    lacking = []
    if compiler() is None:
        lacking.append("a compiler (apt-get install gcc-aarch64-linux-gnu, pip install ziglang, or AARCH64_CC=...)")
    if emulator() is None:
        lacking.append("an emulator (apt-get install qemu-user-static, or QEMU_AARCH64=...)")
    return " and ".join(lacking)


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="tilegraph-aarch64-")
    atexit.register(shutil.rmtree, folder, True)
    return Path(folder)


def _build(*arguments: str | Path) -> None:
    command = [*(compiler() or []), "-O1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"


@functools.cache
def _harness() -> list[Path]:
    """The harness and what the product links into each library, compiled once."""
    made = []
    for source in (Path(__file__).with_name("harness.c"), STUB):
        made.append(_folder() / f"{source.stem}.o")
        _build("-Wall", "-Werror", "-c", source, "-o", made[-1])
    return made


class Emulated:
    """A program with the kernel tg_test, from its object file."""

    def __init__(self, data: bytes) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=_folder()))
        kernel = self.folder / "kernel.o"
        kernel.write_bytes(data)
        self.program = self.folder / "program"
        _build("-static", *_harness(), kernel, "-lm", "-o", self.program)

    def run(self, memory: Sequence[Memory], sizes: Sequence[int], parts: Sequence[tuple[int, int]]) -> list[int]:
        """What the kernel returned for each part; `memory` (scratch last) is what it left there. AssertionError if it
        wrote beside a buffer or died."""
        given = struct.pack("<q", len(memory))
        for k, one in enumerate(memory):
            kind = _SCRATCH if k == len(memory) - 1 and not one.fence else one.fence
            given += struct.pack("<qqq", kind, one.inside.nbytes, one.address % 64) + one.inside.tobytes()
        given += struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes)
        given += struct.pack(f"<q{2 * len(parts)}q", len(parts), *(bound for part in parts for bound in part))
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            source, result = Path(place) / "in", Path(place) / "out"
            source.write_bytes(given)
            command = [*(emulator() or []), str(self.program), str(source), str(result)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            reason = _REASONS.get(done.returncode, f"it ended with {done.returncode}")
            assert done.returncode == 0, f"{reason}: {done.stderr}"
            left = np.fromfile(result, np.uint8)
        at = 4 * len(parts)
        for one in memory:
            one.inside[...] = left[at:at + one.inside.nbytes]
            at += one.inside.nbytes
        assert at == len(left)
        return [int(code) for code in left[:4 * len(parts)].view(np.int32)]
