"""The workers of a comparison: all alive while it lasts, or one at a time where their memory does not fit together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilegraph.bench.peers import Peer
from tilegraph.bench.process import WorkerOutOfMemory, WorkerProcess
from tilegraph.system import available

SAMPLE_S = 2e-3  # a sample repeats runs until it lasts about this long
POOL_SAMPLE_S = 10e-3  # with more than one thread: a thread that comes late must be a small part of it
WARM_S = 0.0  # runs that are not counted before a sample: one, and with several threads those of POOL_WARM_S
POOL_WARM_S = 4e-3  # the pool's threads are asleep, and their CPUs too
WARM_BELOW_S = 50e-3  # longer runs refill the caches in a small part of their time
RETAKES = 4  # of a sample in which one waited longer
ALONE_RETAKES = 2  # with one thread, whose waiting is taken off: only the caches have suffered
_ROOM = 1.25  # times what the largest worker takes must be free for the next one, or they take turns


@dataclass(frozen=True)
class Plan:
    """How one sample of a peer is taken: runs in it, seconds of runs before it (None: not even one), and how often it
    is taken again while others disturb it."""

    repeats: int
    warm_s: float | None
    retakes: int = RETAKES


@dataclass
class Seat:
    """A peer and what is known of it. Bytes: `peak` and `anonymous` the most that a worker of it had, `base` with its
    engine loaded and no session. `mode`: how it runs, `bound` why it is not bound to CPUs ("" if it is), `placed` how
    many of its threads have a CPU of their own."""

    peer: Peer
    worker: WorkerProcess | None = None
    plan: Plan | None = None
    peak: int = 0
    anonymous: int = 0
    base: int = 0
    mode: str = ""
    unbound: str = ""
    placed: int = 0


@dataclass
class Seats:
    """A context manager: workers are ended on leaving. `apart`: each lives only while it is asked for something, and
    creates its session anew each time."""

    peers: Sequence[Peer]
    threads: int
    cpus: list[int] | None
    feeds: Path
    names: list[str]
    apart: bool = False
    seats: list[Seat] = field(default_factory=list)

    def __enter__(self) -> Seats:
        """Opens every worker, runs it once, and finds out how it is sampled.

        Raises WorkerOutOfMemory where one does not even fit alone, WorkerRefused and WorkerDied.
        """
        self.seats = [Seat(peer) for peer in self.peers]
        try:
            for seat in self.seats:
                if not self.apart and self._full():
                    self._part()
                try:
                    self._meet(seat)
                except WorkerOutOfMemory:
                    if self.apart or seat is self.seats[0]:
                        raise
                    self._part()
                    self._meet(seat)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        for seat in self.seats:
            if seat.worker is not None:
                seat.worker.close()
                seat.worker = None

    @contextlib.contextmanager
    def at(self, index: int) -> Iterator[tuple[WorkerProcess, Plan]]:
        """The worker of that peer, with its session open and warm."""
        seat = self.seats[index]
        assert seat.plan is not None, "enter comes first"
        if not self.apart:
            assert seat.worker is not None
            yield seat.worker, seat.plan
            return
        with WorkerProcess(seat.peer, self.cpus) as worker:
            self._open(seat, worker)
            yield worker, seat.plan
            self._weigh(seat, worker)

    def weigh(self) -> None:
        """Brings `peak` and `anonymous` of the living up to date."""
        for seat in self.seats:
            if seat.worker is not None:
                self._weigh(seat, seat.worker)

    def _full(self) -> bool:
        free = available()
        return free is not None and free < _ROOM * max((seat.anonymous for seat in self.seats), default=0)

    def _part(self) -> None:
        self.close()
        self.apart = True

    def _meet(self, seat: Seat) -> None:
        worker = WorkerProcess(seat.peer, self.cpus)
        try:
            self._open(seat, worker)
            seat.plan = plan(worker, self.threads)
            self._weigh(seat, worker)
        except BaseException:
            worker.close()
            raise
        if self.apart:
            worker.close()
        else:
            seat.worker = worker

    def _open(self, seat: Seat, worker: WorkerProcess) -> None:
        opened = worker.ask("open", peer=worker.describe(), threads=self.threads, feeds=str(self.feeds),
                            names=self.names)
        seat.base, seat.mode = opened["base"], opened["mode"]
        if not worker.bound["bound"]:
            seat.unbound = worker.bound.get("reason", "not enough CPUs, or the system cannot bind processes")
        # One thread needs no placing: the whole process is bound to one CPU.
        seat.placed = self.threads
        if self.threads > 1 and self.cpus is not None:
            seat.placed = int(worker.ask("place", cpus=self.cpus)["placed"])

    @staticmethod
    def _weigh(seat: Seat, worker: WorkerProcess) -> None:
        memory = worker.ask("memory")
        seat.peak, seat.anonymous = max(seat.peak, memory["peak"]), max(seat.anonymous, memory["anonymous"])


def plan(worker: WorkerProcess, threads: int) -> Plan:
    """Runs that make a sample of the wanted length; finding out is also the warm-up."""
    wanted, warm = (SAMPLE_S, WARM_S) if threads == 1 else (POOL_SAMPLE_S, POOL_WARM_S)
    repeats = 1
    while True:
        each = float(worker.ask("sample", repeats=repeats, warm_s=warm)["seconds"])
        needed = max(1, math.ceil(wanted / max(each, 1e-9)))
        if needed <= repeats or repeats * each >= wanted / 2:
            return Plan(needed, warm if each < WARM_BELOW_S else None, ALONE_RETAKES if threads == 1 else RETAKES)
        repeats = min(needed, repeats * 20)
