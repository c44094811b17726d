"""Times several models side by side in one run: docs/bench.md says how and why."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegraph.bench.machine import choose_cpus, versions
from tilegraph.bench.peers import Peer, peer_for
from tilegraph.bench.process import WorkerProcess
from tilegraph.bench.result import BenchResult, ModelTiming
from tilegraph.bench.stats import median_interval, paired_ratios, quantile
from tilegraph.errors import InputError, UsageError

Feeds = Mapping[str, npt.NDArray[Any]]

SAMPLE_S = 2e-3  # a sample repeats runs until it lasts about this long
POOL_SAMPLE_S = 10e-3  # with more than one thread: a thread that comes late must be a small part of it
WARM_S = 0.0  # runs that are not counted before a sample: one, and with several threads those of POOL_WARM_S
POOL_WARM_S = 4e-3  # the pool's threads are asleep, and their CPUs too
WARM_BELOW_S = 50e-3  # longer runs refill the caches in a small part of their time
GAP_S = 5e-3  # between samples: pool threads of the peer before stop spinning
CONTENDED = 0.02  # share of a sample that a thread may wait for its CPU
RETAKES = 4  # of a sample in which one waited longer
ALONE_RETAKES = 2  # with one thread, whose waiting is taken off: only the caches have suffered
CREATIONS = 7
PINNED_THREADS = 2  # up to this many threads, workers are bound to CPUs


def bench(models: Sequence[str | Path | Peer], *, threads: int = 1, runs: int = 30,
          inputs: Feeds | str | Path | None = None, dims: Mapping[str, int] | None = None, seed: int = 0,
          create: bool = True, progress: Callable[[int, int], None] | None = None) -> BenchResult:
    """Times `models` against each other; the first one is what ratios refer to.

    A path is what `peer_for` makes of it; a `Peer` says more. Every peer lives in its own process that sleeps while the
    others run; `runs` rounds are made, each round runs every peer once, in the opposite order of the round before.
    `inputs` (arrays by name, or an .npz file) are fed to all; by default they are made from the first model, with
    `dims` and `seed`. `create=False` leaves out session creation (create_s is then NaN). `progress` is called with
    rounds done and rounds in all.

    Raises UsageError for senseless arguments, InputError for models or inputs that cannot be run, WorkerDied when a
    worker crashes.
    """
    if not models:
        raise UsageError("bench: no model was given")
    if threads < 1 or runs < 1:
        raise UsageError(f"bench: threads ({threads}) and runs ({runs}) must be at least 1")
    peers = [m if isinstance(m, Peer) else peer_for(m) for m in models]
    feeds = _given(inputs) if inputs is not None else _made(peers[0], dims, seed)
    cpus = choose_cpus(threads) if threads <= PINNED_THREADS else None
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tilegraph-bench-") as scratch:
        file = Path(scratch) / "feeds.npz"
        np.savez(file, *feeds.values())
        created = _creations(peers, threads, cpus) if create else [math.nan] * len(peers)
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(WorkerProcess(p, cpus)) for p in peers]
            opened = [w.ask("open", peer=w.describe(), threads=threads, feeds=str(file), names=list(feeds))
                      for w in workers]
            placed = _placed(workers, threads, cpus)
            plans = [_plan(w, threads) for w in workers]
            samples, contended = _rounds(workers, plans, runs, progress)
            memory = [w.ask("memory") for w in workers]
    bound = all(w.bound["bound"] for w in workers)
    if threads <= PINNED_THREADS and not bound:
        reasons = {w.bound.get("reason", "not enough CPUs, or the system cannot bind processes") for w in workers}
        notes.append(f"workers are not bound to CPUs: {'; '.join(sorted(reasons))}")
    if any(o["mode"] == "plain" for p, o in zip(peers, opened, strict=True) if p.engine == "onnxruntime"):
        notes.append("inputs and outputs are not bound: the model has strings, sequences or optionals")
    if cpus and threads > 1:
        loose = [p.name for p, n in zip(peers, placed, strict=True) if n < threads]
        if loose:
            notes.append(f"fewer than {threads} working threads were found and placed for {', '.join(loose)}")
    if any(contended):
        notes.append(f"{sum(contended)} of {runs * len(peers)} samples were taken while other programs wanted the CPUs "
                     f"(a thread waited more than {CONTENDED:.0%} of the time, {plans[0].retakes + 1} times running)")
    timings, coverage = [], 1.0
    for i, peer in enumerate(peers):
        interval = median_interval(paired_ratios(samples[0], samples[i]))
        coverage = min(coverage, interval.coverage)
        timings.append(ModelTiming(
            peer.name, str(peer.path), peer.runs_on, statistics.median(samples[i]), quantile(samples[i], 0.1),
            quantile(samples[i], 0.9), interval.median, interval.low, interval.high, created[i], memory[i]["peak"],
            memory[i]["anonymous"], opened[i]["base"], plans[i].repeats, tuple(samples[i]), contended[i]))
    if coverage < 0.95:
        notes.append(f"{runs} rounds give intervals of {coverage:.0%} only; 6 or more are needed for 95%")
    return BenchResult(threads, runs, versions(), tuple(timings), coverage, tuple(cpus) if bound and cpus else None,
                       {k: (str(v.dtype), tuple(v.shape)) for k, v in feeds.items()}, tuple(notes))


def _made(first: Peer, dims: Mapping[str, int] | None, seed: int) -> Feeds:
    """Inputs for the first peer, at sizes on which it runs (tried in a worker of their own)."""
    from tilegraph.verify.inputs import accepted_inputs

    with tempfile.TemporaryDirectory(prefix="tilegraph-bench-") as scratch, WorkerProcess(first, None) as worker:
        file = Path(scratch) / "feeds.npz"
        worker.ask("create", peer=worker.describe(), threads=1)  # a model that does not load has no sizes to try

        def run(feeds: Feeds) -> None:
            np.savez(file, *feeds.values())
            worker.ask("open", peer=worker.describe(), threads=1, feeds=str(file), names=list(feeds))

        return accepted_inputs(first.path, run, seed=seed, dims=dims)


def _given(inputs: Feeds | str | Path) -> Feeds:
    if isinstance(inputs, Mapping):
        return inputs
    try:
        with np.load(inputs, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{inputs}: not an .npz file of arrays ({error})") from error


def _creations(peers: Sequence[Peer], threads: int, cpus: list[int] | None) -> list[float]:
    """Median seconds to create the first session of a process, as a server does.

    Each has a process of its own: a second session takes the memory that the first gave back, and how much of it the
    allocator had kept, by chance, decides between 45 and 80 ms on 100 MB of weights.
    """
    seconds: list[list[float]] = [[] if p.create else [math.nan] for p in peers]
    for turn in range(CREATIONS):
        for i in (i for i in _order(len(peers), turn) if peers[i].create):
            with WorkerProcess(peers[i], cpus) as worker:
                reply = worker.ask("create", peer=worker.describe(), threads=threads)
                seconds[i].append(reply["seconds"])
    return [statistics.median(s) for s in seconds]


def _order(count: int, turn: int) -> list[int]:
    return list(range(count)) if turn % 2 == 0 else list(reversed(range(count)))


def _placed(workers: Sequence[WorkerProcess], threads: int, cpus: list[int] | None) -> list[int]:
    """Gives each working thread of each worker a CPU of its own; how many there were. One thread needs no placing: the
    whole process is bound to one CPU."""
    if threads == 1 or cpus is None:
        return [threads] * len(workers)
    return [int(w.ask("place", cpus=cpus)["placed"]) for w in workers]


@dataclass(frozen=True)
class _Plan:
    """How one sample of a peer is taken: runs in it, seconds of runs before it (None: not even one), and how often it
    is taken again while others disturb it."""

    repeats: int
    warm_s: float | None
    retakes: int = RETAKES


def _plan(worker: WorkerProcess, threads: int) -> _Plan:
    """Runs that make a sample of the wanted length; finding out is also the warm-up."""
    wanted, warm = (SAMPLE_S, WARM_S) if threads == 1 else (POOL_SAMPLE_S, POOL_WARM_S)
    repeats = 1
    while True:
        each = float(worker.ask("sample", repeats=repeats, warm_s=warm)["seconds"])
        needed = max(1, math.ceil(wanted / max(each, 1e-9)))
        if needed <= repeats or repeats * each >= wanted / 2:
            return _Plan(needed, warm if each < WARM_BELOW_S else None, ALONE_RETAKES if threads == 1 else RETAKES)
        repeats = min(needed, repeats * 20)


def _rounds(workers: Sequence[WorkerProcess], plans: Sequence[_Plan], runs: int,
            progress: Callable[[int, int], None] | None) -> tuple[list[list[float]], list[int]]:
    """Samples by worker and round, and how many of each worker's were contended although they were taken again."""
    samples: list[list[float]] = [[] for _ in workers]
    contended = [0] * len(workers)
    for turn in range(runs):
        for i in _order(len(workers), turn):
            seconds, waited = _sample(workers[i], plans[i])
            samples[i].append(seconds)
            contended[i] += waited > CONTENDED
        if progress is not None:
            progress(turn + 1, runs)
    return samples, contended


def _sample(worker: WorkerProcess, plan: _Plan) -> tuple[float, float]:
    """Seconds per run, and the share of the time that a thread waited for its CPU.

    A sample is taken again when that share is large, and the one with the least is kept: what decides is who else
    wanted the CPUs, never how long the runs took.
    """
    taken: list[tuple[float, float]] = []  # waited, seconds
    for _ in range(1 + plan.retakes):
        time.sleep(GAP_S)
        reply = worker.ask("sample", repeats=plan.repeats, warm_s=plan.warm_s)
        taken.append((float(reply["waited"] or 0.0), float(reply["seconds"])))
        if taken[-1][0] <= CONTENDED:
            break
    waited, seconds = min(taken)
    return seconds, waited
