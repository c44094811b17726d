"""Which threads work, where they are put, and that waiting for a CPU is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tilegraph.bench import measure, threads
from tilegraph.bench.seats import Plan
from tilegraph.bench.threads import lost, place, snapshot, working

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system has no schedstat")

_TWO_WORKERS = """
import json, os, sys, threading, time
sys.path.insert(0, {root!r})
from tilegraph.bench.threads import place
import hashlib
data = bytes(1 << 20)
stop = threading.Event()
def work():
    while not stop.is_set(): hashlib.sha256(data).digest()  # without the interpreter's lock
idle = threading.Thread(target=stop.wait); idle.start()
busy = threading.Thread(target=work); busy.start(); time.sleep(0.1)
placed = place(lambda: hashlib.sha256(data).digest(), {cpus})
found = {{name: sorted(os.sched_getaffinity(t)) for name, t in
         (("main", threading.get_native_id()), ("busy", busy.native_id), ("idle", idle.native_id))}}
stop.set()
print(json.dumps([placed, found]))
"""


def test_each_working_thread_gets_a_cpu_and_idle_ones_keep_theirs() -> None:
    import json

    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU only")
    code = _TWO_WORKERS.format(root=str(Path(measure.__file__).parents[2]), cpus=cpus[:2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    placed, found = json.loads(done.stdout)
    assert placed == 2
    assert sorted([found["main"], found["busy"]]) == [[cpus[0]], [cpus[1]]]
    assert found["idle"] == cpus


def test_a_thread_that_sleeps_is_not_a_working_one() -> None:
    end = threading.Event()
    sleeper = threading.Thread(target=end.wait)
    sleeper.start()
    time.sleep(0.1)  # until it sleeps: on a busy machine a new thread waits for its first turn
    try:
        assert sleeper.native_id not in working(lambda: None, 0.1)
        assert threading.get_native_id() in working(lambda: None, 0.1)
        assert place(lambda: None, []) == 0
    finally:
        end.set()
        sleeper.join()


def test_what_a_thread_alone_waited_is_taken_off() -> None:
    ms = 1_000_000
    alone = lost({1: (0, 0), 2: (9, 9)}, {1: (50 * ms, 50 * ms), 2: (9, 9)}, 0.1)
    assert alone == (pytest.approx(0.5), pytest.approx(0.05))
    asleep = lost({1: (0, 0)}, {1: (ms, 0), 2: (60 * ms, 40 * ms)}, 0.1)  # the caller sleeps while another one works
    assert asleep == (pytest.approx(0.4), pytest.approx(0.04))


def test_nothing_is_taken_off_where_several_threads_work_or_nothing_is_known() -> None:
    ms = 1_000_000
    assert lost({1: (0, 0), 2: (0, 0)}, {1: (50 * ms, 50 * ms), 2: (50 * ms, 50 * ms)}, 0.1) == (0.5, 0.0)
    # A wait longer than the interval began before it; what ran is still counted.
    assert lost({1: (0, 0)}, {1: (2 * ms, 500 * ms)}, 0.1) == (5.0, pytest.approx(0.098))
    assert lost({1: (0, 0)}, {1: (0, 500 * ms)}, 0.1) == (5.0, 0.0)
    assert lost({}, {1: (5, 5)}, 0.1) == (None, 0.0)
    assert lost({1: (5, 5)}, {}, 0.1) == (None, 0.0)


def test_sharing_a_cpu_shows_as_waiting() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpu = allowed[-1]
    spin = subprocess.Popen([sys.executable, "-c",
                             f"import os, time\nos.sched_setaffinity(0, [{cpu}])\nend = time.time() + 20\n"
                             "print(flush=True)\nwhile time.time() < end: pass"], stdout=subprocess.PIPE)
    try:
        assert spin.stdout is not None
        spin.stdout.readline()
        os.sched_setaffinity(0, [cpu])
        before, start = snapshot(), time.perf_counter()
        while time.perf_counter() - start < 0.1:
            pass
        waited, _ = lost(before, snapshot(), time.perf_counter() - start)
        assert waited is not None
        assert waited > 0.2
    finally:
        os.sched_setaffinity(0, allowed)
        spin.kill()
        spin.wait()
        spin.stdout.close()


class _Scripted:
    """A worker whose samples are given."""

    def __init__(self, *replies: tuple[float, float | None]) -> None:
        self.left = list(replies)

    def ask(self, do: str, **arguments: object) -> dict[str, float | None]:
        seconds, waited = self.left.pop(0)
        return {"seconds": seconds, "waited": waited}


def _take(*replies: tuple[float, float | None]) -> tuple[tuple[float, float], int]:
    worker = _Scripted(*replies)
    return measure._sample(worker, Plan(1, None)), len(worker.left)  # type: ignore[arg-type]


def test_a_sample_that_others_disturbed_is_taken_again_and_nothing_else_is() -> None:
    assert _take((5.0, 0.0), (1.0, 0.0)) == ((5.0, 0.0), 1)  # a slow one is kept: nobody was in its way
    assert _take((1.0, 0.4), (5.0, 0.01), (1.0, 0.0)) == ((5.0, 0.01), 1)
    assert _take((1.0, None), (2.0, 0.0)) == ((1.0, 0.0), 1)  # nothing is known here
    assert _take((1.0, 0.5), (9.0, 0.3), (2.0, 0.4), (3.0, 0.5), (4.0, 0.6)) == ((9.0, 0.3), 0)


def test_a_thread_that_only_waits_for_its_cpu_is_a_working_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ms = 1_000_000
    snapshots = [{1: (0, 0), 2: (0, 0), 3: (5 * ms, 0)}, {1: (10 * ms, ms), 2: (0, 9 * ms), 3: (5 * ms, 0)}]
    monkeypatch.setattr(threads, "snapshot", lambda: snapshots.pop(0))
    assert working(lambda: time.sleep(0.001), 0.01) == [1, 2]
