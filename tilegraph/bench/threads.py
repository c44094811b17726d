"""A process's threads: which of them work, on which CPU each runs, and how long they waited for one.

Linux only, from /proc/self/task/*/schedstat: nanoseconds on a CPU, and nanoseconds ready to run but not running.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

PROBE_S = 0.03
_BUSY = 0.05  # of the probe's time: a thread that works


def _schedstat(field: int) -> dict[int, int]:
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):  # a system without /proc
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # a thread that just ended, or a kernel without the file
                found[int(task.name)] = int((task / "schedstat").read_text(encoding="ascii").split()[field])
    return found


def waits() -> dict[int, int]:
    """Nanoseconds that each thread has waited for a CPU; empty where the system does not tell."""
    return _schedstat(1)


def worst_wait(before: dict[int, int], after: dict[int, int], seconds: float) -> float | None:
    """The largest share of `seconds` that one thread waited between two calls of `waits`; None if nothing is known."""
    if not before or not after or seconds <= 0:
        return None
    return max(after[t] - before.get(t, 0) for t in after) / 1e9 / seconds


def working(run: Callable[[], None], seconds: float = PROBE_S) -> list[int]:
    """The ids of the threads that use a CPU while `run` is called again and again, the busiest first."""
    before = _schedstat(0)
    start = time.perf_counter()
    while True:
        run()
        taken = time.perf_counter() - start
        if taken >= seconds:
            break
    used = {t: (ns - before.get(t, 0)) / 1e9 for t, ns in _schedstat(0).items()}
    return sorted((t for t, s in used.items() if s >= _BUSY * taken), key=lambda t: -used[t])


def place(run: Callable[[], None], cpus: list[int]) -> int:
    """Gives each working thread a CPU of its own, as far as `cpus` go; the others keep what they had.

    Threads that share a CPU while the other one idles take turns of some milliseconds each, and a thread that spins for
    another one's result wastes its own. The scheduler leaves them together for up to seconds. Returns how many were
    placed: 0 where the system does not tell which threads work.
    """
    placed = 0
    for thread, cpu in zip(working(run), cpus, strict=False):
        try:
            os.sched_setaffinity(thread, [cpu])
        except (AttributeError, OSError):  # it has ended, or the system has no such call
            continue
        placed += 1
    return placed
