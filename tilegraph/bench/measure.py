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
WARM_BELOW_S = 50e-3  # longer runs refill the caches in a small part of their time
GAP_S = 5e-3  # between samples: pool threads of the peer before stop spinning
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
            plans = [_plan(w) for w in workers]
            samples = _rounds(workers, plans, runs, progress)
            memory = [w.ask("memory") for w in workers]
    bound = all(w.bound["bound"] for w in workers)
    if threads <= PINNED_THREADS and not bound:
        reasons = {w.bound.get("reason", "not enough CPUs, or the system cannot bind processes") for w in workers}
        notes.append(f"workers are not bound to CPUs: {'; '.join(sorted(reasons))}")
    if any(o["mode"] == "plain" for o in opened):
        notes.append("inputs and outputs are not bound: the model has strings, sequences or optionals")
    timings, coverage = [], 1.0
    for i, peer in enumerate(peers):
        interval = median_interval(paired_ratios(samples[0], samples[i]))
        coverage = min(coverage, interval.coverage)
        timings.append(ModelTiming(
            peer.name, str(peer.path), peer.provider, statistics.median(samples[i]), quantile(samples[i], 0.1),
            quantile(samples[i], 0.9), interval.median, interval.low, interval.high, created[i], memory[i]["peak"],
            memory[i]["anonymous"], opened[i]["base"], plans[i].repeats, tuple(samples[i])))
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
    seconds: list[list[float]] = [[] for _ in peers]
    for turn in range(CREATIONS):
        for i in _order(len(peers), turn):
            with WorkerProcess(peers[i], cpus) as worker:
                reply = worker.ask("create", peer=worker.describe(), threads=threads)
                seconds[i].append(reply["seconds"])
    return [statistics.median(s) for s in seconds]


def _order(count: int, turn: int) -> list[int]:
    return list(range(count)) if turn % 2 == 0 else list(reversed(range(count)))


@dataclass(frozen=True)
class _Plan:
    """How one sample of a peer is taken."""

    repeats: int
    warm: bool


def _plan(worker: WorkerProcess) -> _Plan:
    """Runs that make a sample of about SAMPLE_S; finding out is also the warm-up."""
    repeats = 1
    while True:
        each = float(worker.ask("sample", repeats=repeats, warm=True)["seconds"])
        needed = max(1, math.ceil(SAMPLE_S / max(each, 1e-9)))
        if needed <= repeats or repeats * each >= SAMPLE_S / 2:
            return _Plan(needed, each < WARM_BELOW_S)
        repeats = min(needed, repeats * 20)


def _rounds(workers: Sequence[WorkerProcess], plans: Sequence[_Plan], runs: int,
            progress: Callable[[int, int], None] | None) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in workers]
    for turn in range(runs):
        for i in _order(len(workers), turn):
            time.sleep(GAP_S)
            reply = workers[i].ask("sample", repeats=plans[i].repeats, warm=plans[i].warm)
            samples[i].append(float(reply["seconds"]))
        if progress is not None:
            progress(turn + 1, runs)
    return samples
