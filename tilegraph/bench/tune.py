"""Times one composite for `optimize --tune`: our folders and ONNX Runtime on its definition, in turns in one child.

All run with one thread, on the same inputs. The least CPU time of each is taken: what others do on the machine only
adds, and a thread that waits for its CPU takes none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from tilegraph.bench.machine import versions

SECONDS = 0.2  # of alternated runs for each folder, and as much for ONNX Runtime
TIMEOUT_S = 120.0


class Measure:
    """See `tilegraph.compiler.tune.Measure`."""

    def __init__(self) -> None:
        self.machine = json.dumps(versions(), sort_keys=True)

    def __call__(self, original: ir.Model, ours: Sequence[Path]) -> tuple[Sequence[float], float]:
        with tempfile.TemporaryDirectory(prefix="tilegraph-tune-") as folder:
            path = Path(folder) / "original.onnx"
            ir.save(original, path, external_data="original.data")
            command = [sys.executable, "-m", "tilegraph.bench.tune", str(path),
                       *(str(folder / "model.onnx") for folder in ours)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise RuntimeError(f"it took more than {TIMEOUT_S:.0f} s") from error
        if done.returncode:
            words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise RuntimeError(words[0])
        *kernels, runtime = (float(seconds) for seconds in json.loads(done.stdout))
        return kernels, runtime


def main(original: str, *ours: str) -> None:
    """In the child: prints the seconds of each of ours, then of ONNX Runtime."""
    import time

    import onnxruntime as ort

    import tilegraph.runtime
    from tilegraph.verify.inputs import make_inputs

    feeds = make_inputs(original)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [*(tilegraph.runtime.session(Path(one), threads=1) for one in ours),
                ort.InferenceSession(original, options, providers=["CPUExecutionProvider"])]
    best = [float("inf")] * len(sessions)
    for session in sessions:
        session.run(None, feeds)
    end, rounds = time.perf_counter() + SECONDS * len(sessions), 0
    while rounds < 5 or time.perf_counter() < end:
        for k, session in enumerate(sessions):
            start = time.thread_time()
            session.run(None, feeds)
            best[k] = min(best[k], time.thread_time() - start)
        rounds += 1
    print(json.dumps(best))


if __name__ == "__main__":
    main(*sys.argv[1:])
