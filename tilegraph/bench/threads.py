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
ALONE = 0.02  # of the time: what other threads may use while one works alone
_BUSY = 0.05  # of the probe's time: a thread that works
Times = dict[int, tuple[int, int]]


def snapshot() -> Times:
    """By thread: nanoseconds on a CPU, nanoseconds waiting for one. Empty where the system does not tell."""
    found: Times = {}
    with contextlib.suppress(OSError):  # a system without /proc
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, ValueError):  # a thread that just ended, or a kernel without the file
                ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
                found[int(task.name)] = (int(ran), int(waited))
    return found


def lost(before: Times, after: Times, seconds: float) -> tuple[float | None, float]:
    """What `seconds` between two snapshots lost to other programs: (the largest share that one thread waited, None if
    nothing is known; the seconds that can be taken off for it).

    Taken off is the waiting of a thread that worked alone, for then the whole process stood still. Where several
    worked, the others may have gone on, or have been what it waited for: nothing is taken off. What the thread ran is
    never taken off: a wait that began before the first snapshot is counted in the second.
    """
    if not before or not after or seconds <= 0:
        return None, 0.0
    changes = [((ran - before.get(t, (0, 0))[0]) / 1e9, (waited - before.get(t, (0, 0))[1]) / 1e9)
               for t, (ran, waited) in after.items()]
    changes.sort(reverse=True)
    others = sum(ran for ran, _ in changes[1:])
    alone = others <= ALONE * seconds
    ran, waited = changes[0]
    off = max(min(waited, seconds - ran), 0.0) if alone and ran > 0 else 0.0
    return max(waited for _, waited in changes) / seconds, off


def working(run: Callable[[], None], seconds: float = PROBE_S) -> list[int]:
    """The ids of the threads that use a CPU, or wait for one, while `run` is called again and again, the busiest
    first. Those that wait count, because a thread that has no CPU of its own yet may get little of another's."""
    before = snapshot()
    start = time.perf_counter()
    while True:
        run()
        taken = time.perf_counter() - start
        if taken >= seconds:
            break
    used = {t: (sum(times) - sum(before.get(t, (0, 0)))) / 1e9 for t, times in snapshot().items()}
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
