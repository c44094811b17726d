"""The child process of `run.open_runner(isolate=True)`: loads one model and runs what it is sent."""

from __future__ import annotations

import importlib
import os
import sys
from typing import cast

from tilegraph.errors import InputError
from tilegraph.system import gigabytes, limit_self, ran_out
from tilegraph.verify.run import ModelRun, RunFailure, open_runner, receive, send


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the engines print must not mix with the replies
    requests = sys.stdin.buffer
    what, limit = cast("tuple[ModelRun, int | None]", receive(requests))
    if limit is not None:
        importlib.import_module("onnxruntime" if what.engine == "ort" else "onnx.reference")  # no part of the run
        limit_self(limit)
    try:
        runner = open_runner(what, isolate=False)
    except RunFailure as failure:
        send(replies, _failed(failure, limit))
        return
    except InputError as error:
        send(replies, ("unusable", str(error)))
        return
    except Exception as error:
        send(replies, ("error", f"{type(error).__name__}: {error}"))
        return
    send(replies, ("ok", runner.signature))
    while True:
        try:
            feeds = receive(requests)
        except EOFError:
            return
        try:
            send(replies, ("ok", runner.run(feeds)))
        except RunFailure as failure:
            send(replies, _failed(failure, limit))


def _failed(failure: RunFailure, limit: int | None) -> tuple[str, str]:
    """The reply; an allocation that failed at the limit says how much there was."""
    if limit is None or not ran_out(str(failure)):
        return "error", str(failure)
    return "memory", f"it needs more memory than the {gigabytes(limit)} that are free"


if __name__ == "__main__":
    main()
