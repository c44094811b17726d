"""The child process of `run.open_runner(isolate=True)`: loads one model and runs what it is sent."""

from __future__ import annotations

import os
import sys

from tilegraph.errors import InputError
from tilegraph.verify.run import RunFailure, open_runner, receive, send


def main() -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the engines print must not mix with the replies
    requests = sys.stdin.buffer
    try:
        runner = open_runner(receive(requests), isolate=False)
    except RunFailure as failure:
        send(replies, ("error", str(failure)))
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
            send(replies, ("error", str(failure)))


if __name__ == "__main__":
    main()
