"""The process that runs one peer: `python -m tilegraph.bench.worker`, driven over pipes.

One JSON object a line in, one out. Commands: `start` {cpus}, `create` {peer, threads}, `open` {peer, threads,
feeds, names}, `place` {cpus}, `sample` {repeats, warm_s}, `outputs` {file}, `memory`. It sleeps on its input between
commands, so that only one peer runs at a time. Everything else that is printed goes to stderr. A peer's own interpreter
may run it, which need not have more than numpy and the peer's engine.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any

from tilegraph.system import first_to_go


class Worker:
    """The commands; each returns what is sent back."""

    def __init__(self) -> None:
        self._open: Any = None

    def start(self, cpus: list[int] | None) -> dict[str, Any]:
        first_to_go()
        # Before numpy and ONNX Runtime are imported, so that their thread counts see it.
        if cpus is None:
            return {"bound": False}
        try:
            os.sched_setaffinity(0, cpus)
        except (AttributeError, OSError) as error:
            return {"bound": False, "reason": str(error)}
        return {"bound": True}

    def create(self, peer: dict[str, Any], threads: int) -> dict[str, Any]:
        from tilegraph.bench.engines import module
        from tilegraph.bench.threads import lost, snapshot

        engine = module(peer["engine"])
        engine.load(peer)  # importing a library is no part of the session's creation
        gc.collect()
        before = snapshot()
        start = time.perf_counter()
        session = engine.create(peer, threads)
        taken = time.perf_counter() - start
        _, off = lost(before, snapshot(), taken)
        del session
        return {"seconds": taken - off}

    def open(self, peer: dict[str, Any], threads: int, feeds: str, names: list[str]) -> dict[str, Any]:
        import numpy as np

        from tilegraph.bench.engines import module
        from tilegraph.bench.machine import memory

        engine = module(peer["engine"])
        engine.load(peer)
        base = memory()["resident"]
        self._open = engine.create(peer, threads)
        with np.load(feeds, allow_pickle=False) as arrays:
            mode = self._open.bind({name: arrays[f"arr_{i}"] for i, name in enumerate(names)})
        gc.collect()
        gc.disable()
        return {"base": base, "mode": mode}

    def place(self, cpus: list[int]) -> dict[str, Any]:
        from tilegraph.bench.threads import place

        return {"placed": place(self._open.run, cpus)}

    def sample(self, repeats: int, warm_s: float | None) -> dict[str, Any]:
        """Seconds per run. Runs that are not counted go first, for `warm_s` but at least one (none for None), since
        another peer has had the caches. `waited`: the largest share of the time that a thread of this process was
        ready to run and something else had its CPU; None where the system does not tell. Where one thread works alone,
        what it waited is not counted in the seconds."""
        from tilegraph.bench.threads import lost, snapshot

        assert self._open is not None, "open comes first"
        run = self._open.run
        if warm_s is not None:
            until = time.perf_counter() + warm_s
            run()
            while time.perf_counter() < until:
                run()
        before = snapshot()
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        taken = time.perf_counter() - start
        waited, off = lost(before, snapshot(), taken)
        return {"seconds": (taken - off) / repeats, "waited": waited}

    def outputs(self, file: str) -> dict[str, Any]:
        import numpy as np

        assert self._open is not None, "open comes first"
        np.savez(file, *self._open.outputs())
        return {}

    def memory(self) -> dict[str, Any]:
        from tilegraph.bench.machine import memory

        return dict(memory())


def main() -> None:
    # Libraries may print: keep the pipe to ourselves and send file descriptor 1 to stderr.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"ok": True, **getattr(worker, request.pop("do"))(**request)}
        except Exception as error:
            reply = {"ok": False, "kind": type(error).__name__, "error": str(error)}
        pipe.write(json.dumps(reply) + "\n")
        pipe.flush()


if __name__ == "__main__":
    main()
