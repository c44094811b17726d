"""One case from file to verdict: optimize, save, verify, time against ONNX Runtime on the original."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.cases import Case, Feeds, shapes
from models.products import product_flop
from models.required import NOT_SLOWER
from tilegraph.bench import BenchResult, Peer, WorkerDied, WorkerRefused, bench
from tilegraph.bench.answers import quantised
from tilegraph.bench.kinds import Found
from tilegraph.bench.peers import peer_for
from tilegraph.bench.rivals import Rival, rivals
from tilegraph.bench.stats import Interval
from tilegraph.errors import NotEnoughMemory, TilegraphError

OUT = Path(__file__).resolve().parents[1] / "build" / "bench"
PEERS = OUT.parent / "peers"  # what graph tools made of the models
FIRST, OURS = 0, 1  # places in a comparison: ONNX Runtime on the original, tilegraph; then the others
CREATE_SLACK = 1.05  # of ONNX Runtime's creation time: the spread of the median of CREATIONS


@dataclass
class Outcome:
    """What happened. `verdict`: pass, short (answers right, too slow), wrong (answers differ), skipped (less memory is
    free than it takes) or failed."""

    case: Case
    inputs: str = ""
    optimize_s: float = 0.0
    summary: dict[str, Any] = field(default_factory=dict)
    same: bool | None = None
    benches: dict[int, BenchResult] = field(default_factory=dict)  # by threads
    problems: list[str] = field(default_factory=list)
    verdict: str = "failed"
    verify_s: float = 0.0
    bench_s: float = 0.0
    flop: float = 0.0  # of products in kernels, see `products`; 0 for models of integers
    rivals: list[Rival] = field(default_factory=list)  # peers other than ONNX Runtime on the original

    def best_peer(self, threads: int) -> tuple[str, Interval] | None:
        """The fastest peer, ONNX Runtime on the original included, and its time / ours; None without other peers."""
        if not self.rivals or threads not in self.benches:
            return None
        return best_of(self.benches[threads])

    def reference(self, threads: int) -> tuple[str, Interval] | None:
        """As `best_peer`, of those that the required ratio counts."""
        if not self.rivals or threads not in self.benches:
            return None
        return best_of(self.benches[threads], self.case.reference)

    def to_json(self) -> dict[str, Any]:
        best, reference = ({t: found(t) for t in self.benches} for found in (self.best_peer, self.reference))
        return {"name": self.case.name, "group": self.case.group, "must_hold": self.case.must_hold,
                "inputs": self.inputs, "optimize_s": self.optimize_s, "verify_s": self.verify_s,
                "bench_s": self.bench_s, "summary": self.summary, "same": self.same,
                "bench": {str(t): r.to_json() for t, r in self.benches.items()}, "problems": self.problems,
                "verdict": self.verdict, "peers": [r.to_json() for r in self.rivals],
                "best_peer": _ratios(best), "reference": _ratios(reference)}


def _ratios(best: Mapping[int, tuple[str, Interval] | None]) -> dict[str, Any]:
    """Peers by threads, for JSON."""
    return {str(t): {"name": b[0], "ratio": b[1].median, "low": b[1].low, "high": b[1].high}
            for t, b in best.items() if b}


def best_of(result: BenchResult, names: Collection[str] = ()) -> tuple[str, Interval]:
    """The fastest of ONNX Runtime on the original and the peers of these names (of all without any), and its time /
    ours."""
    best = result.best_but(OURS, names)
    return result.models[best].name, result.versus(OURS, best)


def run_case(case: Case, *, threads: Sequence[int] = (1,), runs: int | None = None, out: Path = OUT,
             create: bool = True, found: Sequence[Found] = ()) -> Outcome:
    """Optimizes, verifies and times one case, against the peers in `found` too.

    Never raises for what the case itself does wrong: the outcome carries it."""
    outcome = Outcome(case)
    try:
        _run(case, outcome, threads, runs or case.runs, out, create, found)
    except NotEnoughMemory as error:
        outcome.verdict = "skipped"
        outcome.problems.append(str(error))
    except TilegraphError as error:
        outcome.problems.append(str(error))
    except Exception as error:  # a bug in a stage must not hide the other cases
        outcome.problems.append(f"{type(error).__name__}: {error}")
    return outcome


def _run(case: Case, outcome: Outcome, threads: Sequence[int], runs: int, out: Path, create: bool,
         found: Sequence[Found]) -> None:
    from tilegraph.compiler import optimize
    from tilegraph.verify import verify

    original, feeds = case.path(), case.feeds()
    outcome.inputs = shapes(feeds)
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    model = optimize(original, target="cpu", precision=case.precision)
    folder = Path(model.save(out / f"{case.name}.tilegraph", force=True))
    outcome.optimize_s = time.perf_counter() - start
    outcome.summary = model.summary.to_json()
    if not quantised(original):
        outcome.flop = product_flop(model, feeds, lambda sizes: optimize(original, dims=sizes, dry_run=True,
                                                                         precision=case.precision, sample=feeds))
    start = time.perf_counter()
    for fed in (feeds, *case.others()):
        result = verify(original, folder, inputs=fed)
        if not result.same:
            outcome.same = False
            different = [o.name for o in result.outputs if not o.same]
            reasons = result.problems or ([result.inconclusive] if result.inconclusive else [])
            outcome.problems.append(f"verify at {shapes(fed)}: "
                                    + "; ".join([*(f"{n} differs" for n in different), *reasons]))
    outcome.same = outcome.same is None
    outcome.verify_s = time.perf_counter() - start
    if not outcome.same:
        outcome.verdict = "wrong"
        return
    start = time.perf_counter()
    if found:
        special = case.special(found, PEERS / case.name)
        outcome.rivals = rivals(original, feeds, found, PEERS, special, loose=case.precision != "float32")
    for count in threads:
        _time(outcome, [Peer("ONNX Runtime", original), peer_for(folder)], feeds, count, runs,
              create and count == threads[0])
    outcome.bench_s = time.perf_counter() - start
    outcome.problems += shortfalls(case, outcome.benches)
    outcome.verdict = "short" if outcome.problems else "pass"


def _time(outcome: Outcome, both: Sequence[Peer], feeds: Feeds, threads: int, runs: int, create: bool) -> None:
    """Times `both` and the rivals that take part. One that fails is named, and the others are timed without it."""
    while True:
        others = [r.peer for r in outcome.rivals if r.peer is not None]
        try:
            outcome.benches[threads] = bench([*both, *others], threads=threads, runs=runs, inputs=feeds, create=create)
            return
        except (WorkerDied, WorkerRefused) as error:
            failed = [r for r in outcome.rivals if r.peer is not None and r.peer is error.peer]
            if not failed:
                raise
            outcome.rivals = [replace(r, peer=None, reason=f"failed at {threads} thread(s): {error}")
                              if r in failed else r for r in outcome.rivals]


def shortfalls(case: Case, benches: dict[int, BenchResult]) -> list[str]:
    """What the timings miss, one line each; empty when the case passes."""
    missed = []
    for threads, result in benches.items():
        original, ours = result.models[FIRST], result.models[OURS]
        if case.must_hold is not None and threads == 1 and ours.ratio < case.must_hold:
            missed.append(f"{ours.ratio:.2f}x at 1 thread, {case.must_hold:g}x is required")
        elif ours.ratio_high < NOT_SLOWER:
            missed.append(f"slower than ONNX Runtime at {threads} thread(s): {ours.ratio:.2f} "
                          f"[{ours.ratio_low:.2f}, {ours.ratio_high:.2f}]")
        if case.must_best is not None and threads == 1 and len(result.models) > 2:
            name, found = best_of(result, case.reference)
            if found.median < case.must_best:
                missed.append(f"{found.median:.2f}x of the best peer ({name}), {case.must_best:g}x is required")
        if case.group != "chains" and ours.create_s > CREATE_SLACK * original.create_s:
            missed.append(f"the session takes {ours.create_s * 1e3:.1f} ms to create, ONNX Runtime's of the original "
                          f"{original.create_s * 1e3:.1f}")
    return missed
