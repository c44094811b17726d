"""How a call is split: every unit once, whole multiples of `align`, scratch of its own for each task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnxruntime as ort
import pytest

from tilegraph.spec.dims import Dim

Serve = Callable[..., Any]

# count[i] += 1 for each unit and part[i] = begin of the task that did it, while a mark in its scratch must survive;
# arguments x, count, part, scratch, extent, align, scratch bytes, begin, end. "clear" zeroes count first.
TRACE = r"""
#include <sched.h>
KERNEL(clear) {
  int bad_tag = 0;
  int64_t* count = POINTER(int64_t, 0);
  CHECK_TAGS(5);
  for (int64_t i = BEGIN; i < END; ++i) count[i] = 0;
  return 0;
}
KERNEL(trace) {
  int bad_tag = 0;
  int64_t* count = POINTER(int64_t, 1); int64_t* part = POINTER(int64_t, 2);
  unsigned char* scratch = POINTER(unsigned char, 3);
  int64_t extent = INTEGER(4), align = INTEGER(5), bytes = INTEGER(6), begin = BEGIN, end = END;
  CHECK_TAGS(9);
  if (begin % align || begin < 0 || begin >= end || end > extent) return raise_error("IndexError", "bad part");
  if (end != extent && end % align) return raise_error("IndexError", "end is not aligned");
  if (bytes ? !scratch || (uint64_t)scratch % 64 : scratch != 0) return raise_error("ValueError", "bad scratch");
  memset(scratch, (int)(begin % 251) + 1, bytes);
  for (int64_t i = begin; i < end; ++i) { __atomic_fetch_add(&count[i], 1, __ATOMIC_RELAXED); part[i] = begin; }
  sched_yield();
  for (int64_t i = 0; i < bytes; ++i)
    if (scratch[i] != (int)(begin % 251) + 1) return raise_error("ValueError", "another task wrote this scratch");
  return 0;
}
"""


def trace_program(grain: Any, align: int, scratch: Any) -> Any:
    n = Dim.symbol("n")
    outputs = [ep.tensor("count", "int64", "n"), ep.tensor("part", "int64", "n")]
    return ep.program([ep.tensor("x", "int64", "n")], outputs,
                      [ep.call("clear", [ep.result(0), ep.source(0)], [], n),
                       ep.call("trace", [ep.source(0), ep.result(0), ep.result(1)], [n, align, scratch], n, grain=grain,
                               align=align, scratch=scratch)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("grain", "align", "scratch"), [(1, 1, 0), (1, 1, 100), (10, 8, 1), (3, 7, 4096), (64, 64, 64),
                                                         (1, 1000, 10), (Dim.symbol("n") // 5, 2, Dim.symbol("n"))])
def test_every_unit_once(serve: Serve, compile_kernels: Callable[..., Path], threads: int, grain: Any, align: int,
                         scratch: Any) -> None:
    artifact = ep.Artifact(compile_kernels(TRACE), {"p": trace_program(grain, align, scratch)})
    for max_tasks in (1, 2, 3, 16, 64, 4096):
        session = serve(artifact, threads=threads, options={"max_tasks": max_tasks})
        for n in (1, 2, 63, 64, 65, 1000, 0):
            count, part = session.run(None, {"x": np.zeros(n, np.int64)})
            np.testing.assert_array_equal(count, np.ones(n))
            tasks = len(np.unique(part))
            each = max(int(Dim.of(grain).evaluate({"n": n})), 1)
            rounded = 1 << (-(-n // each) - 1).bit_length() if n else 0
            units = -(-n // align)
            few = max_tasks > 1 and units <= min(4 * max_tasks, 4096) and -(-n // each) >= units
            assert tasks == (units if few else min(rounded, units, max_tasks))


def test_parts_are_even(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    artifact = ep.Artifact(compile_kernels(TRACE), {"p": trace_program(1, 4, 0)})
    session = serve(artifact, threads=2, options={"max_tasks": 7})
    _, part = session.run(None, {"x": np.zeros(403, np.int64)})
    sizes = np.unique(part, return_counts=True)[1]
    assert len(sizes) == 7
    assert sizes[:-1].max() - sizes[:-1].min() <= 4  # the last part may lack up to align - 1 more
    assert sizes.max() - sizes[-1] <= 4 + 3


def test_the_default_splits(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    session = serve(ep.Artifact(compile_kernels(TRACE), {"p": trace_program(1, 1, 0)}))
    _, part = session.run(None, {"x": np.zeros(100000, np.int64)})
    assert len(np.unique(part)) >= 4


def test_many_arguments(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """More than fit a task's stack row: y = the sum of 1000 arrays."""
    count = 1000
    library = compile_kernels(r"""
KERNEL(sum) {
  int bad_tag = 0;
  float* y = POINTER(float, 1000);
  CHECK_TAGS(1004);
  for (int64_t i = BEGIN; i < END; ++i) {
    float total = 0;
    for (int k = 0; k < 1000; ++k) total += POINTER(const float, k)[i];
    y[i] = total;
  }
  return bad_tag;
}""")
    inputs = [ep.tensor(f"x{i}", "float", 64) for i in range(count)]
    spec = ep.program(inputs, [ep.tensor("y", "float", 64)],
                      [ep.call("sum", [*[ep.source(i) for i in range(count)], ep.result(0)], [], 64, grain=8)])
    session = serve(ep.Artifact(library, {"p": spec}), threads=2)
    feeds = {f"x{i}": np.full(64, i, np.float32) for i in range(count)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.full(64, count * (count - 1) / 2))


@pytest.mark.parametrize("max_tasks", [1, 8])
def test_scratch_begins_cleared_and_is_kept_within_a_call(serve: Serve, compile_kernels: Callable[..., Path],
                                                          max_tasks: int) -> None:
    """One thread: a call's first task finds 0 in its scratch, whatever ran before, the others what it left."""
    library = compile_kernels(r"""
KERNEL(first) {
  int bad_tag = 0;
  int64_t* y = POINTER(int64_t, 1);
  int64_t* scratch = POINTER(int64_t, 2);
  CHECK_TAGS(5);
  for (int i = 0; i < 8; ++i) if (scratch[i] != scratch[0]) return raise_error("ValueError", "a part is cleared");
  for (int64_t i = BEGIN; i < END; ++i) y[i] = scratch[0];
  for (int i = 0; i < 8; ++i) scratch[i] = 7;
  return 0;
}""")
    spec = ep.program([ep.tensor("x", "int64", 64)], [ep.tensor("y", "int64", 64), ep.tensor("z", "int64", 64)],
                      [ep.call("first", [ep.source(0), ep.result(k)], [], 64, grain=8, scratch=64) for k in (0, 1)])
    session = serve(ep.Artifact(library, {"p": spec}), threads=1, options={"max_tasks": max_tasks})
    for _ in range(3):
        for made in session.run(None, {"x": np.zeros(64, np.int64)}):
            assert made.tolist() == [0] * (64 // max_tasks) + [7] * (64 - 64 // max_tasks)


# y[i] = x[n-1-i] + 1, or an error where x[i] is a million. The first task is late: the others must be waiting for it.
TURN = r"""
#include <unistd.h>
KERNEL(turn) {
  int bad_tag = 0;
  const int64_t* x = POINTER(const int64_t, 0); int64_t* y = POINTER(int64_t, 1);
  int64_t size = INTEGER(3);
  CHECK_TAGS(6);
  if (BEGIN == 0 && END < size) usleep(100);
  for (int64_t i = BEGIN; i < END; ++i) {
    if (x[i] == 1000000) return raise_error("ValueError", "a million");
    y[i] = x[size - 1 - i] + 1;
  }
  return bad_tag;
}
"""
CALLS = 150  # more than one launch on the pool has


def test_calls_follow_each_other(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """Every task reads what another one of the call before wrote; some calls have a single task."""
    size, few = 64, (0, 7, 8, 80, CALLS - 1)
    slots = [ep.source(0), *(ep.arena(k % 2 * 8 * size) for k in range(CALLS - 1)), ep.result(0)]
    calls = [replace(ep.call("turn", [slots[k], slots[k + 1]], [size], size, grain=size if k in few else 2),
                     name=f"turn{k}") for k in range(CALLS)]
    spec = ep.program([ep.tensor("x", "int64", size)], [ep.tensor("y", "int64", size)], calls, 16 * size)
    session = serve(ep.Artifact(compile_kernels(TURN), {"p": spec}), threads=3)
    x = np.arange(size)
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + CALLS)
    for k in (0, 7, 70, CALLS - 1):
        bad = x.copy()
        bad[33] = 1_000_000 - k
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.RuntimeException,
                           match=f"'turn{k}' failed: ValueError: a million"):
            session.run(None, {"x": bad})
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + CALLS)


def test_an_error_in_one_task(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    library = compile_kernels(r"""
KERNEL(one_fails) {
  int bad_tag = 0;
  const int64_t* x = POINTER(const int64_t, 0);
  CHECK_TAGS(5);
  for (int64_t i = BEGIN; i < END; ++i) if (x[i]) return raise_error("ValueError", "unit failed");
  return 0;
}""")
    spec = ep.program([ep.tensor("x", "int64", 64)], [ep.tensor("y", "int64", 64)],
                      [ep.call("one_fails", [ep.source(0), ep.result(0)], [], 64, grain=1)])
    session = serve(ep.Artifact(library, {"p": spec}), threads=2)
    x = np.zeros(64, np.int64)
    session.run(None, {"x": x})
    for at in (0, 31, 63):
        x[:] = 0
        x[at] = 1
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.RuntimeException, match="ValueError: unit failed"):
            session.run(None, {"x": x})
    session.run(None, {"x": np.zeros(64, np.int64)})


def test_concurrent_runs_of_three_sessions(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """8 threads a session, different shapes at the same time, arena, scratch and tasks in use."""
    n = Dim.symbol("n")
    library = compile_kernels(ep.ADD_ONE + TRACE)
    spec = ep.program([ep.tensor("x", "float", n), ep.tensor("z", "int64", n)],
                      [ep.tensor("y", "float", n), ep.tensor("count", "int64", n), ep.tensor("part", "int64", n)],
                      [ep.call("add_one", [ep.source(0), ep.arena(0)], [n], n, grain=16),
                       ep.call("clear", [ep.result(1), ep.source(1)], [], n),
                       ep.call("trace", [ep.source(1), ep.result(1), ep.result(2)], [n, 8, 64], n, grain=8, align=8,
                               scratch=64),
                       ep.call("add_one", [ep.arena(0), ep.result(0)], [n], n, grain=16)], arena_bytes=n * 4)
    artifact = ep.Artifact(library, {"p": spec})
    sessions = [serve(artifact, threads=2) for _ in range(3)]
    problems: list[str] = []
    done = [0]
    lock = threading.Lock()

    def work(seed: int, session: Any) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(20):
                size = int(random.integers(0, 5000))
                x = random.standard_normal(size).astype(np.float32)
                y, count, _ = session.run(None, {"x": x, "z": np.zeros(size, np.int64)})
                if not (np.array_equal(y, x + 1 + 1) and (count == 1).all()):
                    problems.append(f"wrong values for {size}")
                with lock:
                    done[0] += 1
        except Exception as error:
            problems.append(str(error))

    threads = [threading.Thread(target=work, args=(8 * s + t, session)) for s, session in enumerate(sessions)
               for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]
    assert done[0] == 480
