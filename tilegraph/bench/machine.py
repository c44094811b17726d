"""What is measured on: CPU name, versions, and which CPUs the workers are bound to."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from tilegraph import __version__


def cpu_name() -> str:
    """The CPU's model name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what takes part, and the CPU."""
    try:
        onnxruntime = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:  # a build of one's own may be named otherwise
        onnxruntime = "unknown"
    return {"cpu": cpu_name(), "python": platform.python_version(), "tilegraph": __version__,
            "onnxruntime": onnxruntime}


def choose_cpus(count: int) -> list[int] | None:
    """`count` allowed CPUs on different cores where there are enough, the highest numbers first (interrupts and other
    programs prefer the lowest); None if the system cannot bind processes or has too few CPUs."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    if len(allowed) < count:
        return None
    chosen: list[int] = []
    cores: set[str] = set()
    for cpu in allowed:
        core = _core(cpu)
        if core not in cores:
            cores.add(core)
            chosen.append(cpu)
    chosen += [c for c in allowed if c not in chosen]
    return sorted(chosen[:count])


def _core(cpu: int) -> str:
    """A name that the hardware threads of one core share."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(cpu)


def memory(pid: int | str = "self") -> dict[str, int]:
    """Bytes from /proc: `peak` (VmHWM, which counts mapped files), `anonymous` (RssAnon), `resident` (VmRSS).

    Zeros where the system does not tell.
    """
    names = {"VmHWM": "peak", "RssAnon": "anonymous", "VmRSS": "resident"}
    found = dict.fromkeys(names.values(), 0)
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            key, _, rest = line.partition(":")
            if key in names:
                found[names[key]] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found
