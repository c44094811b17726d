"""The parent's handle of one worker process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tilegraph.bench.machine import memory
from tilegraph.bench.peers import Peer
from tilegraph.errors import EnvironmentProblem, InputError, NotEnoughMemory, TilegraphError
from tilegraph.system import RESERVE_BYTES, available, gigabytes, ran_out

POLL_S = 0.05  # between looks at the memory while a worker is at work
LARGE_BYTES = 1 << 30  # what a worker must have taken to be to blame


class WorkerDied(TilegraphError):
    """A worker ended or did not answer; the message names the peer, how it ended and its last words. `peer` is it."""

    def __init__(self, message: str, peer: Peer | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class WorkerRefused(InputError):
    """A worker could not do what it was told: a model that does not load, an input that is missing. `peer` is its."""

    def __init__(self, message: str, peer: Peer | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class WorkerOutOfMemory(WorkerRefused, NotEnoughMemory):
    """A worker needs more memory than there is."""


class WorkerProcess:
    """One `tilegraph.bench.worker`. A context manager: it is ended on leaving, whatever happened."""

    def __init__(self, peer: Peer, cpus: list[int] | None, *, timeout_s: float = 900.0,
                 command: list[str] | None = None) -> None:
        self.peer = peer
        self._timeout_s = timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        root = str(Path(__file__).resolve().parents[2])
        # numpy's own pool is never measured, and its threads spin for a while after the import.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **peer.environment}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
        command = command or [peer.python, "-m", "tilegraph.bench.worker"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             stderr=self._errors, env=environment)
        except OSError as error:
            self._errors.close()
            raise EnvironmentProblem(f"bench: {command[0]} cannot be started for {peer.name} ({error.strerror}); give "
                                     "the Python interpreter that has what this peer needs") from error
        self.bound = self.ask("start", cpus=cpus)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for the reply. Raises WorkerRefused (an InputError) for what the worker could
        not do, WorkerDied when it ended or said nothing for `timeout_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write((json.dumps({"do": do, **arguments}) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._died(do) from error
        if not self._ready(do):
            raise WorkerDied(f"bench: {self.peer.name} did not finish '{do}' in {self._timeout_s:.0f} s", self.peer)
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._died(do)
        reply: dict[str, Any] = json.loads(line)
        if not reply.pop("ok"):
            if ran_out(f"{reply['kind']}: {reply['error']}"):
                raise WorkerOutOfMemory(f"{self.peer.path}: {self.peer.name} ran out of memory during '{do}'",
                                        self.peer)
            raise WorkerRefused(f"{self.peer.path}: {' '.join(reply['error'].split())} ({reply['kind']} during "
                                f"'{do}')", self.peer)
        return reply

    def _ready(self, do: str) -> bool:
        """Waits for the reply; False after `timeout_s`.

        A worker that has taken much is ended before the system has nothing left, which would end whatever it likes. No
        limit of the process would do: ONNX Runtime's arena asks for twice what it then touches.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + self._timeout_s
        while (left := end - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], min(left, POLL_S))[0]:
                return True
            free = available()
            if free is None or free > RESERVE_BYTES:
                continue
            taken = memory(self._process.pid)["anonymous"]
            if taken > LARGE_BYTES:
                self._process.kill()
                raise WorkerOutOfMemory(f"{self.peer.path}: {self.peer.name} was ended during '{do}', because it had "
                                        f"taken {gigabytes(taken)} and {gigabytes(free)} were left", self.peer)
        return False

    def describe(self) -> dict[str, Any]:
        """The peer in the worker's form."""
        return {"path": str(self.peer.path), "provider": self.peer.provider, "options": dict(self.peer.options),
                "provider_options": dict(self.peer.provider_options), "optimization": self.peer.optimization,
                "engine": self.peer.engine}

    def _died(self, do: str) -> WorkerDied | WorkerOutOfMemory:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return WorkerDied(f"bench: the worker of {self.peer.name} closed its pipe during '{do}'", self.peer)
        if code == -signal.SIGKILL:
            return WorkerOutOfMemory(f"{self.peer.path}: the worker of {self.peer.name} was ended by SIGKILL during "
                                     f"'{do}', as the system does when memory runs out", self.peer)
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        tail = f"; last output: {' | '.join(words[-3:])}" if words else ""
        return WorkerDied(f"bench: the worker of {self.peer.name} ended with {how} during '{do}'{tail}", self.peer)

    def close(self) -> None:
        """Closes its input, which ends it; kills it if it has not ended after 10 s."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes of a worker that is gone
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
