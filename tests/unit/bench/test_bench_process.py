"""Workers that die, refuse or hang end the run with an error that says which and how."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilegraph.bench import Peer, WorkerDied
from tilegraph.bench.process import WorkerProcess
from tilegraph.errors import EnvironmentProblem, InputError

PEER = Peer("the peer", Path("some/model.onnx"), environment={"TILEGRAPH_TEST_MARK": "7"})

# A worker that answers `start` and then does as told.
_ANSWER_ONCE = ("import sys,json,os,signal;sys.stdin.readline();"
                "print(json.dumps({'ok':True,'bound':False}),flush=True);")


def _worker(then: str, timeout_s: float = 30.0) -> WorkerProcess:
    return WorkerProcess(PEER, None, timeout_s=timeout_s, command=[sys.executable, "-c", _ANSWER_ONCE + then])


def test_a_crash_names_the_peer_the_signal_and_the_last_output() -> None:
    then = "sys.stdin.readline();print('going down',file=sys.stderr,flush=True);os.kill(os.getpid(),signal.SIGSEGV)"
    with _worker(then) as worker, pytest.raises(WorkerDied) as caught:
        worker.ask("sample", repeats=1, warm_s=0.0)
    message = str(caught.value)
    for part in ("the peer", "SIGSEGV", "'sample'", "going down"):
        assert part in message


def test_an_exit_is_reported_with_its_code() -> None:
    with _worker("sys.stdin.readline();sys.exit(3)") as worker, pytest.raises(WorkerDied, match="exit code 3"):
        worker.ask("memory")


def test_a_reply_cut_short_is_a_death_too() -> None:
    then = "sys.stdin.readline();sys.stdout.write('{\"ok\": tr');sys.stdout.flush()"
    with _worker(then) as worker, pytest.raises(WorkerDied, match="exit code 0"):
        worker.ask("memory")


def test_silence_ends_with_the_time_limit() -> None:
    with _worker("sys.stdin.readline();sys.stdin.readline()", timeout_s=0.3) as worker, \
            pytest.raises(WorkerDied, match="did not finish 'memory'"):
        worker.ask("memory")


def test_a_refusal_is_an_input_error_with_the_path() -> None:
    then = ("sys.stdin.readline();print(json.dumps({'ok':False,'kind':'Fail','error':'no such op'}),flush=True);"
            "sys.stdin.readline()")
    with _worker(then) as worker, pytest.raises(InputError, match=r"some/model\.onnx: no such op \(Fail"):
        worker.ask("open")


def test_the_real_worker_reports_memory_and_sees_the_peers_environment() -> None:
    with WorkerProcess(PEER, None) as worker:
        found = worker.ask("memory")
        assert found["peak"] >= found["resident"] > 1_000_000
        assert found["anonymous"] > 0
        environment = Path(f"/proc/{worker._process.pid}/environ").read_bytes()
        assert b"TILEGRAPH_TEST_MARK=7" in environment


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match=r"/no/such/python cannot be started for the peer"):
        WorkerProcess(Peer("the peer", Path("m.onnx"), python="/no/such/python"), None)


def test_the_death_of_a_worker_carries_the_peer() -> None:
    with _worker("sys.stdin.readline();sys.exit(3)") as worker, pytest.raises(WorkerDied) as caught:
        worker.ask("memory")
    assert caught.value.peer is PEER


def test_binding_to_cpus_is_reported() -> None:
    import os

    cpus = sorted(os.sched_getaffinity(0))[:1]
    with WorkerProcess(PEER, cpus) as worker:
        assert worker.bound == {"bound": True}
        assert os.sched_getaffinity(worker._process.pid) == set(cpus)
    with WorkerProcess(PEER, [99999]) as worker:
        assert worker.bound["bound"] is False
        assert worker.bound["reason"]
