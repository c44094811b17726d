"""The memory that the system has left, and how a process of ours is kept within it.

A process that would take more fails in an allocation, with a reason; without a limit the system would end whatever
process it likes. Needs the standard library only: workers of benchmarks run in interpreters of other peers.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

RESERVE_BYTES = 256 << 20  # of what is free, left to others
_CGROUP = Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes that programs may still take: what the system has free, and the control group allows. None if the system
    does not tell."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").split("::", 1)[1].splitlines()[0]
        folder = _CGROUP / own.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(_CGROUP):
                break
            with contextlib.suppress(OSError, ValueError):  # the root has no limit, others may say "max"
                limit = int((group / "memory.max").read_text())
                found.append(limit - int((group / "memory.current").read_text()) + _cached(group))
    return min(found) if found else None


def _cached(group: Path) -> int:
    """Bytes of files that the group's programs have read, which the system takes back when it needs them."""
    lines = (group / "memory.stat").read_text().splitlines()
    return sum(int(line.partition(" ")[2]) for line in lines if line.startswith(("inactive_file ", "active_file ")))


def free_bytes() -> int | None:
    """What one run may take: what is available, less a reserve."""
    free = available()
    return None if free is None else max(free - RESERVE_BYTES, 0)


def first_to_go() -> None:
    """Should the system run out of memory, it ends this process before others."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_self(size: int) -> None:
    """Lets this process take no more than `size` bytes beside what it has; first of all, see `first_to_go`."""
    first_to_go()
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        size += int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def ran_out(message: str) -> bool:
    """Whether an engine's error says that an allocation failed."""
    return any(words in message for words in ("bad_alloc", "bad allocation", "Failed to allocate memory",
                                              "MemoryError", "Unable to allocate", "annot allocate memory",
                                              "can't allocate memory"))


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
