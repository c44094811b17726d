"""Models that run in a child process: crashes, hangs and errors come back as failures, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from verify_pairs import Pairs

from tilegraph.verify.run import ModelRun, RunFailure, open_runner

F = np.float32


def child(make: Pairs, text: str = "g (float[n] x) => (float[n] y) { y = Relu(x) }", **weights: Any) -> Any:
    return open_runner(ModelRun(str(make(text, **weights)), threads=1), isolate=True)


def test_answers_come_back(make: Pairs) -> None:
    runner = child(make, "g (float[n] x) => (seq(float) y, string[n] z) { y = SplitToSequence(x)\n"
                         "z = Cast<to = 8>(x) }")
    assert [n for n, _ in runner.signature[1]] == ["y", "z"]
    parts, words = runner.run({"x": np.array([1, 2], F)})
    assert [p.tolist() for p in parts] == [[1], [2]]
    assert words.tolist() == ["1", "2"]
    runner.close()
    runner.close()


def test_errors_of_a_run_leave_the_child_usable(make: Pairs) -> None:
    runner = child(make, "g (int64[n] x) => (float[n] y) { y = Gather(T, x) }", T=np.arange(3, dtype=F))
    with pytest.raises(RunFailure, match="out of data bounds"):
        runner.run({"x": np.array([7])})
    assert runner.run({"x": np.array([2])})[0].tolist() == [2]
    runner.close()


def test_a_model_that_does_not_load(make: Pairs) -> None:
    with pytest.raises(RunFailure, match="nowhere") as caught:
        child(make, '<ir_version: 10, opset_import: ["" : 21, "nowhere" : 1]>\n'
                    "g (float[n] x) => (float[n] y) { y = nowhere.Op(x) }")
    assert caught.value.creating


def test_a_crash_is_told_with_its_signal_and_the_next_run_starts_anew(make: Pairs) -> None:
    runner = child(make)
    os.kill(runner._process.pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (runner._process.pid, signal.SIGSEGV)).start()
    threading.Timer(0.4, os.kill, (runner._process.pid, signal.SIGCONT)).start()
    with pytest.raises(RunFailure, match="killed by SIGSEGV"):
        runner.run({"x": np.zeros(3, F)})
    assert runner.run({"x": np.ones(3, F)})[0].tolist() == [1, 1, 1]
    runner.close()


def test_a_child_that_hangs_is_killed(make: Pairs) -> None:
    runner = child(make)
    os.kill(runner._process.pid, signal.SIGSTOP)
    with pytest.raises(RunFailure, match="took longer than 1 s"):
        runner.run({"x": np.zeros(3, F)}, 0.5 + 0.4)
    assert runner._process.poll() == -signal.SIGKILL


def test_bfloat16_crosses_the_boundary(make: Pairs) -> None:
    import ml_dtypes

    runner = child(make, "g (bfloat16[n] x) => (bfloat16[n] y) { y = Identity(x) }")
    given = np.array([1.5, -2], ml_dtypes.bfloat16)
    (back,) = runner.run({"x": given})
    assert back.dtype == given.dtype
    assert back.tolist() == given.tolist()
    runner.close()
