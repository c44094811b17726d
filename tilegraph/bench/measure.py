"""Times several models side by side in one run: docs/bench.md says how and why."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegraph.bench.machine import choose_cpus, versions
from tilegraph.bench.peers import Peer, peer_for
from tilegraph.bench.process import WorkerProcess
from tilegraph.bench.result import BenchResult, ModelTiming
from tilegraph.bench.seats import Plan, Seats
from tilegraph.bench.stats import median_interval, paired_ratios, quantile
from tilegraph.errors import InputError, UsageError
from tilegraph.spec.given import GivenDims

Feeds = Mapping[str, npt.NDArray[Any]]

GAP_S = 5e-3  # between samples: pool threads of the peer before stop spinning
CONTENDED = 0.02  # share of a sample that a thread may wait for its CPU
CREATIONS = 7
PINNED_THREADS = 2  # up to this many threads, workers are bound to CPUs


def bench(models: Sequence[str | Path | Peer], *, threads: int = 1, runs: int = 30,
          inputs: Feeds | str | Path | None = None, dims: GivenDims | None = None, seed: int = 0,
          create: bool = True, progress: Callable[[int, int], None] | None = None) -> BenchResult:
    """Times `models` against each other; the first one is what ratios refer to.

    A path is what `peer_for` makes of it; a `Peer` says more. Every peer lives in its own process that sleeps while the
    others run (where their memory does not fit together, only while it is timed); `runs` rounds are made, each round
    runs every peer once, in the opposite order of the round before. `inputs` (arrays by name, or an .npz file) are fed
    to all; by default they are made from the first model, with `dims` and `seed`. `create=False` leaves out session
    creation (create_s is then NaN). `progress` is called with rounds done and rounds in all.

    Raises UsageError for senseless arguments, InputError for models or inputs that cannot be run, WorkerDied when a
    worker crashes; of these WorkerOutOfMemory where one needs more memory than is free.
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
        with Seats(peers, threads, cpus, file, list(feeds)) as together:
            samples, contended = _rounds(together, runs, progress)
            together.weigh()
    seats = together.seats
    plans = [seat.plan for seat in seats if seat.plan is not None]
    bound = not any(seat.unbound for seat in seats)
    if together.apart:
        notes.append("one worker at a time, opened anew for each sample: together they need more memory than is free")
    if threads <= PINNED_THREADS and not bound:
        reasons = {seat.unbound for seat in seats if seat.unbound}
        notes.append(f"workers are not bound to CPUs: {'; '.join(sorted(reasons))}")
    if any(seat.mode == "plain" for seat in seats if seat.peer.engine == "onnxruntime"):
        notes.append("inputs and outputs are not bound: the model has strings, sequences or optionals")
    if cpus and threads > 1:
        loose = [seat.peer.name for seat in seats if seat.placed < threads]
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
            quantile(samples[i], 0.9), interval.median, interval.low, interval.high, created[i], seats[i].peak,
            seats[i].anonymous, seats[i].base, plans[i].repeats, tuple(samples[i]), contended[i]))
    if coverage < 0.95:
        notes.append(f"{runs} rounds give intervals of {coverage:.0%} only; 6 or more are needed for 95%")
    return BenchResult(threads, runs, versions(), tuple(timings), coverage, tuple(cpus) if bound and cpus else None,
                       {k: (str(v.dtype), tuple(v.shape)) for k, v in feeds.items()}, tuple(notes))


def _made(first: Peer, dims: GivenDims | None, seed: int) -> Feeds:
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


def _rounds(together: Seats, runs: int,
            progress: Callable[[int, int], None] | None) -> tuple[list[list[float]], list[int]]:
    """Samples by peer and round, and how many of each peer's were contended although they were taken again."""
    count = len(together.seats)
    samples: list[list[float]] = [[] for _ in range(count)]
    contended = [0] * count
    for turn in range(runs):
        for i in _order(count, turn):
            with together.at(i) as (worker, plan):
                seconds, waited = _sample(worker, plan)
            samples[i].append(seconds)
            contended[i] += waited > CONTENDED
        if progress is not None:
            progress(turn + 1, runs)
    return samples, contended


def _sample(worker: WorkerProcess, plan: Plan) -> tuple[float, float]:
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
