"""Session creation is timed in processes of their own, each peer by its own worker, in alternating order."""

from __future__ import annotations

import math
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tilegraph.bench import Peer, measure


def test_every_creation_is_the_first_of_a_process_of_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Fake:
        def __init__(self, peer: Peer, cpus: list[int] | None) -> None:
            self.peer, self.sessions = peer, 0

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                     trace: TracebackType | None) -> None:
            pass

        def describe(self) -> dict[str, Any]:
            return {"name": self.peer.name}

        def ask(self, what: str, *, peer: dict[str, Any], threads: int) -> dict[str, Any]:
            self.sessions += 1
            assert (what, threads, self.sessions) == ("create", 2, 1)
            asked.append((self.peer.name, peer["name"]))
            return {"seconds": {"a": 1.0, "b": 2.0}[self.peer.name] + len(asked) % 3}

    monkeypatch.setattr(measure, "WorkerProcess", Fake)
    peers = [Peer("a", Path("a.onnx")), Peer("b", Path("b.onnx")), Peer("c", Path("c.onnx"), create=False)]
    seconds = measure._creations(peers, 2, None)
    order = [name for name, _ in asked]
    assert order == [n for turn in range(measure.CREATIONS) for n in ("ab" if turn % 2 == 0 else "ba")]
    assert all(worker == described for worker, described in asked)
    for k, name in enumerate("ab"):
        given = sorted((1.0, 2.0)[k] + (i + 1) % 3 for i, n in enumerate(order) if n == name)
        assert seconds[k] == given[len(given) // 2]
    assert math.isnan(seconds[2])
