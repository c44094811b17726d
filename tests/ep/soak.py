"""Many threads, sessions and models in one process for a while: every answer the same bits, and memory flat.

    python -m tests.ep.soak [--seconds 60] [--threads 8] [--sessions 4] [--sanitize]

`--sanitize` runs it in a child process on the provider's build with the address and undefined-behaviour sanitizers
(made if it is not there). Every thread picks sessions and shapes at random; one more thread opens and closes sessions.
The first answer of each session for each input is checked against ONNX Runtime without optimizations, the others
against the first one, bit by bit. Memory is what the process holds (resident set), after a third of the time and at
the end; it may grow by a hundredth. Under the sanitizers, whose own records grow, it is the bytes that are allocated
and not freed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = ROOT / "build" / "ep-sanitize" / "libtilegraph_ep.so"
GROWTH = 0.01
Array = np.ndarray[Any, Any]


def models() -> dict[str, tuple[onnx.ModelProto, list[dict[str, Array]]]]:
    """Three models with inputs of several sizes: layers around products, masked attention, control flow."""
    from tests.numeric.compiler.served import BRANCHES, layers, normal
    from tests.unit.attention.spellings import Spelling
    from tests.unit.fusion.parse import proto

    attention = Spelling(layout="merged", mask="causal-where", symbolic=True, queries=24, keys=24).model()
    sizes = [(1, 24), (3, 24), (2, 24)]
    named = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in attention.graph.input}
    feeds = [{name: normal(*({"b": b, "s": s, "t": s}.get(str(d), d) for d in shape), seed=k)
              for k, (name, shape) in enumerate(named.items())} for b, s in sizes]
    return {
        "layers": (layers(2), [{"x": normal(n, 8, 16, seed=n)} for n in (1, 3, 40, 7)]),
        "attention": (attention, feeds),
        "branches": (proto(BRANCHES, 18), [{"x": normal(n, 16, seed=n), "c": np.array(n % 2 == 0)}
                                           for n in (1, 20, 64, 33)]),
    }


@dataclass
class Soak:
    """`problems` stays empty if all is well."""

    folder: Path
    seconds: float
    threads: int
    sessions: int
    runs: int = 0
    opened: int = 0
    memory: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def prepare(self) -> None:
        from tests.numeric.compiler.served import reference, same
        from tilegraph import runtime
        from tilegraph.compiler import optimize

        self.work: list[tuple[Any, list[tuple[dict[str, Array], list[Array]]]]] = []
        self.paths = []
        for name, (model, feeds) in models().items():
            made = optimize(model, offload="all")
            path = made.save(self.folder / name)
            assert made.summary.partitions > 0, f"{name}: nothing was compiled"
            self.paths.append(path)
            for _ in range(self.sessions):
                session = runtime.session(path, threads=2)
                known = []
                for given in feeds:
                    answers = session.run(None, given)
                    same(answers, reference(model, given))
                    known.append((given, answers))
                self.work.append((session, known))

    def run(self) -> None:
        self.stop = threading.Event()
        lock = threading.Lock()

        def serve(seed: int) -> None:
            choose, count = random.Random(seed), 0
            while not self.stop.is_set() and not self.problems:
                session, known = choose.choice(self.work)
                given, wanted = choose.choice(known)
                try:
                    found = session.run(None, given)
                    if any(a.shape != b.shape or a.tobytes() != b.tobytes()
                           for a, b in zip(found, wanted, strict=True)):
                        self.problems.append(f"thread {seed}: other bits after {count} runs")
                except Exception as error:
                    self.problems.append(f"thread {seed}: {error}")
                count += 1
            with lock:
                self.runs += count

        def reopen() -> None:
            from tilegraph import runtime

            while not self.stop.is_set() and not self.problems:
                for path in self.paths:
                    runtime.session(path, threads=1)
                    self.opened += 1
                time.sleep(0.05)

        workers = [threading.Thread(target=serve, args=(k,)) for k in range(self.threads)]
        workers.append(threading.Thread(target=reopen))
        for worker in workers:
            worker.start()
        start = time.monotonic()
        while (passed := time.monotonic() - start) < self.seconds and not self.problems:
            time.sleep(min(0.25, self.seconds / 40))
            if passed > self.seconds / 3:
                self.pages.append(resident())
                self.memory.append(allocated() or self.pages[-1])
        self.stop.set()
        for worker in workers:
            worker.join()
        gc.collect()


def growth(samples: list[int]) -> float:
    """How much the middle of the last fifth of the samples lies above that of the first."""
    fifth = max(1, len(samples) // 5)
    return float(np.median(samples[-fifth:]) / np.median(samples[:fifth]) - 1)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def allocated() -> int:
    """Bytes that the address sanitizer handed out and that nobody freed; 0 without it."""
    asked = getattr(ctypes.CDLL(None), "__sanitizer_get_current_allocated_bytes", None)
    if asked is None:
        return 0
    asked.restype = ctypes.c_size_t
    return int(asked())


def sanitizer_environment() -> dict[str, str]:
    """The environment of a child that loads the sanitizers' build, which is made first."""
    subprocess.run([ROOT / "tools" / "build_ep.sh", "--sanitize"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "PYTHON": sys.executable})
    compiler = os.environ.get("CXX", "g++")
    libraries = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
                 for name in ("libasan.so", "libubsan.so")]
    return {**os.environ, "LD_PRELOAD": " ".join(libraries), "TILEGRAPH_EP_LIBRARY": str(SANITIZED),
            # Freed memory waits in a small queue only, or memory could not be flat. Python itself leaks at exit.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=4:"
                            "thread_local_quarantine_size_kb=64",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=4, help="of each model")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--any-growth", action="store_true", help="memory is shown and not judged (short runs)")
    given = parser.parse_args()
    if given.sanitize:
        arguments = [a for a in sys.argv[1:] if a != "--sanitize"]
        return subprocess.run([sys.executable, "-m", "tests.ep.soak", *arguments], cwd=ROOT,
                              env=sanitizer_environment(), check=False).returncode
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        soak = Soak(Path(folder), given.seconds, given.threads, given.sessions)
        soak.prepare()
        soak.run()
    grown = growth(soak.memory)
    if grown > GROWTH and not given.any_growth:
        soak.problems.append(f"memory grew by {grown:.2%}")
    print(f"{soak.runs} runs in {given.threads} threads on {len(soak.work)} sessions, {soak.opened} more opened and "
          f"closed; {soak.memory[-1] / 1e6:.0f} MB, growth {grown:+.2%} (resident {soak.pages[-1] / 1e6:.0f} MB, "
          f"{growth(soak.pages):+.2%})")
    for problem in soak.problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
