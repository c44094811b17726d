"""Random graphs, optimized with every legal region, against ONNX Runtime without optimizations.

    python -m tests.fuzz.fuzz [--seconds 300] [--start 0] [--offload all|auto]

Each graph runs in a child that does many, so that a crash is a finding too. What differs by the rules of `verify` is
made small and saved in tests/fuzz/found, where tests/fuzz/test_saved.py runs it from then on. Graphs with symbolic
sizes run at two other sets of sizes. Kernels cut into as many tasks as they have units must give the same bits, on
arrays that lie anywhere, and so must a later run; inputs stay as they are. A third has kernels in blocks of a few
elements (tests/fuzz/small.py), some are also written anew (tests/fuzz/anew.py) and must give the same kernels. What
differs from ONNX Runtime but not from the onnx package's reference evaluator, and what ONNX Runtime's own
optimizations do to nodes that stay with it, is counted apart, and so is what ends its process ("dies").
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.fuzz.anew import SPELLINGS, reordered, symbols
from tests.fuzz.finish import random_subject
from tests.fuzz.graphs import Graph
from tests.fuzz.serving import anywhere, finely
from tests.fuzz.small import small_blocks
from tests.fuzz.spelled import spelled
from tests.fuzz.subject import Subject

FOUND = Path(__file__).parent / "found"
# The error of one value tells little of how large ONNX Runtime's errors are: a few times its bound is chance in a
# random graph, and counted apart.
ROUNDING = 16.0
# What `verify` says of an output that ONNX Runtime's optimizations change in the original as well.
DRIFTS = "ORT's own optimizations take the original out of this bound too"
SMALL = "small-"  # how the names of what was found in small blocks begin
LIMIT_S = 120.0  # for one graph
OTHER_SIZES = 2  # sets of inputs of other sizes


def subject(seed: int) -> Subject | None:
    """One in twelve is attention in a spelling of its tests; None where nothing came of the seed."""
    if seed % 12 == 7:
        return spelled(seed)
    graph = Graph(seed)
    return random_subject(graph) if graph.nodes else None


def is_small(seed: int) -> bool:
    """Whether the kernels of this seed's graph are made in small blocks."""
    return seed % 3 == 2


def check(seed: int, offload: str, folder: Path, small: bool | None = None) -> tuple[str, str]:
    """("kernel" or "ort", "") for the same answers; ("WRONG" or another word in capitals, why). `small`: blocks, which
    the seed decides where it is None."""
    with small_blocks(folder) if (is_small(seed) if small is None else small) else nullcontext():
        return _check(seed, offload, folder)


def _check(seed: int, offload: str, folder: Path) -> tuple[str, str]:
    from tilegraph.compiler import optimize
    from tilegraph.spec.artifact import EP_NAME
    from tilegraph.verify.run import ModelRun, RunFailure, open_runner

    what = subject(seed)
    if what is None:
        return "empty", ""
    model = what.model
    path = folder / f"{seed}.onnx"
    onnx.save(model, path)
    try:
        runner = open_runner(ModelRun(str(path), threads=1), isolate=False)
        wanted = runner.run(what.feeds)
    except RunFailure:
        return "unrunnable", ""  # node by node it runs; ONNX Runtime's inference over the whole says no
    try:
        made = optimize(path, offload=offload)
        saved = made.save(folder / f"{seed}.tilegraph", force=True)
    except Exception as error:
        return "OPTIMIZE", f"{type(error).__name__}: {error}"[:300]
    names = [n for n, _ in runner.signature[1]]
    fine = finely(made).save(folder / f"{seed}.fine.tilegraph", force=True)
    served: Any = None
    cut: Any = None
    first: list[Any] = []
    for label, feeds in (("", what.feeds), *(("other sizes: ", what.other(k)) for k in range(OTHER_SIZES))):
        try:
            if label:
                wanted = runner.run(feeds) if feeds else []
            if not wanted:
                continue
        except RunFailure:
            continue  # constants fit one size only
        try:
            if served is None:
                served, cut = runner_of(saved), runner_of(fine)
            found = served.run(feeds)
            moved_feeds = anywhere(feeds)
            again = cut.run(moved_feeds)
        except RunFailure as error:
            return "optimized" if refused(path, feeds) else "RUN", label + str(error)
        kind, why = judge(model, path, saved, feeds, dict(zip(names, wanted, strict=True)),
                          dict(zip([n for n, _ in served.signature[1]], found, strict=True)))
        if kind:
            return kind, label + why
        if not all(same_bits(a, b) for a, b in zip(found, again, strict=True)):
            # Rows beside a whole vector are computed alone, and LLVM may round a product and a sum there once or twice;
            # ONNX Runtime's own operators may sum in another order by where arrays lie.
            kind, why = judge(model, path, fine, feeds, dict(zip(names, wanted, strict=True)),
                              dict(zip(names, again, strict=True)))
            if kind:
                return kind, f"{label}kernels that are cut finely: {why}"
        if touched := [n for n in feeds if not same_bits(feeds[n], moved_feeds[n])]:
            return "WRONG", f"{label}{', '.join(touched)}: an input was written to"
        first = first or found
    if served is not None:  # behind other sizes, whose values are still in the arena
        found = served.run(what.feeds)
        if others := [n for n, a, b in zip(names, found, first, strict=True) if not same_bits(a, b)]:
            return "WRONG", f"{', '.join(others)}: other bits in a later run"
    if seed % 4 == 0:
        for written in SPELLINGS:
            again = written(model, seed)
            if again is None:
                continue
            other = optimize(again, offload=offload)
            if symbols(other) != symbols(made):
                here, there = sum(symbols(made).values()), sum(symbols(other).values())
                return "OTHER_KERNELS", f"{written.__name__}: {here} calls of kernels, then {there}"
    elif seed % 4 == 1:  # regions grow in the order of the nodes, so these kernels may be others
        moved = folder / f"{seed}.moved.onnx"
        onnx.save(reordered(model, seed), moved)
        try:
            place = optimize(moved, offload=offload).save(folder / f"{seed}.moved.tilegraph", force=True)
            found = runner_of(place).run(what.feeds)
        except Exception as error:
            return "RUN", f"nodes in another order: {type(error).__name__}: {error}"[:300]
        wanted = runner.run(what.feeds)
        kind, why = judge(model, moved, place, what.feeds, dict(zip(names, wanted, strict=True)),
                          dict(zip(names, found, strict=True)))
        if kind:
            return kind, f"nodes in another order: {why}"
    return ("kernel" if made.summary.engines.get(EP_NAME) else "ort"), ""


def runner_of(folder: Path) -> Any:
    """The saved folder, served by the plugin in this process."""
    from tilegraph.spec.artifact import MODEL_FILE
    from tilegraph.verify.run import ModelRun, open_runner

    return open_runner(ModelRun(str(folder / MODEL_FILE), optimize=True, plugin=True, threads=1), isolate=False)


def refused(path: Path, feeds: dict[str, Any]) -> bool:
    """Whether ONNX Runtime with its optimizations does not run the original either."""
    from tilegraph.verify.run import ModelRun, RunFailure, open_runner

    try:
        open_runner(ModelRun(str(path), optimize=True, threads=1), isolate=False).run(feeds)
    except RunFailure:
        return True
    return False


def judge(model: onnx.ModelProto, path: Path, saved: Path, feeds: dict[str, Any], wanted: dict[str, Any],
          found: dict[str, Any]) -> tuple[str, str]:
    """("", "") for the same answers by the rules of `verify`."""
    from tests.conformance.sweep_worker import close
    from tilegraph.verify import verify

    if list(found) == list(wanted) and all(close(n, wanted[n], found[n]) for n in wanted):
        return "", ""
    judged = verify(path, saved, inputs=feeds, threads=1, reference_limit=20.0)
    bad = [o for o in judged.outputs if not o.same]
    if not bad and not judged.problems:
        return "", ""
    words = [f"{o.name}: max_abs {o.max_abs:.3g} (bound {o.atol:.3g}), {'; '.join(o.notes)}" for o in bad]
    why = "; ".join([*judged.problems, *words])[:500]
    if judged.problems:
        return "WRONG", why
    if all(o.max_abs <= ROUNDING * o.atol and "out of bounds" in " ".join(o.notes) for o in bad):
        return "rounding", why
    if second_judge(model, feeds, [o.name for o in bad], found):
        return "reference", why
    if all(DRIFTS in o.notes for o in bad) and verify(
            path, saved, inputs=feeds, threads=1, reference_limit=20.0, ort_optimizations=False).same:
        return "optimized", why
    return "WRONG", why


def same_bits(a: Any, b: Any) -> bool:
    """Whether two outputs are the same, NaN for NaN."""
    return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")


def second_judge(model: onnx.ModelProto, feeds: dict[str, Any], names: list[str], found: dict[str, Any]) -> bool:
    """Whether the onnx package's reference evaluator answers as we do where ONNX Runtime does not."""
    from onnx.reference import ReferenceEvaluator

    from tests.conformance.sweep_worker import close

    try:
        with np.errstate(all="ignore"):
            answers = ReferenceEvaluator(model).run(names, feeds)
    except Exception:
        return False  # it lacks an operator or a dtype
    return all(a.dtype == found[n].dtype and a.shape == found[n].shape and close(n, a, found[n])
               for n, a in zip(names, answers, strict=True))


def shrink(seed: int, offload: str, kind: str) -> str:
    """The name of the files in `found`: the smallest piece that differs, or where only the whole graph does, that."""
    from tilegraph.io import load
    from tilegraph.verify.bisect.cut import record, save_inputs
    from tilegraph.verify.bisect.oracle import Options, Oracle
    from tilegraph.verify.bisect.shrink import Shrinker

    what = subject(seed)
    assert what is not None
    small = is_small(seed)
    name = f"{SMALL if small else ''}{kind.lower()}-{offload}-{seed}"
    with (tempfile.TemporaryDirectory(prefix="fuzz-") as work,
          small_blocks(Path(work)) if small else nullcontext()):
        oracle = Oracle(Path(work), threads=1, rtol=None, atol=None)
        options = Options(offload=offload)

        def faulty(piece: Any, feeds: dict[str, Any]) -> bool:
            path = oracle.save(piece)
            if kind == "OPTIMIZE":
                try:
                    options.optimize(path).save(oracle.place("m.tilegraph"))
                except Exception:
                    return True
                return False
            return oracle.differs_optimized(path, options, feeds)

        path = Path(work) / "whole.onnx"
        onnx.save(what.model, path)
        try:
            model = load(path)
            values = record(model, what.feeds, 1, Path(work))
            piece = Shrinker(model, values, faulty, LIMIT_S).run([v.name or "" for v in model.graph.outputs])
        except Exception as error:  # what is wrong may be the loaded model itself, which is then found whole
            print(f"seed {seed} cannot be made small: {type(error).__name__}: {error}"[:300], flush=True)
            piece = None
        FOUND.mkdir(exist_ok=True)
        if piece is None:
            onnx.save(what.model, FOUND / f"{name}.onnx")
            save_inputs(what.feeds, FOUND / f"{name}.npz")
        else:
            (FOUND / f"{name}.onnx").write_bytes(oracle.save(piece.model).read_bytes())
            save_inputs(piece.feeds, FOUND / f"{name}.npz")
    return name


def _child(seeds: list[int], offload: str, folder: Path, connection: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    for seed in seeds:
        try:
            connection.send((seed, *check(seed, offload, folder)))
        except Exception as error:
            connection.send((seed, "CHECK", f"{type(error).__name__}: {error}"[:300]))
        for path in folder.glob("*.onnx"):
            path.unlink()


def _original(seed: int, folder: Path) -> None:
    """ONNX Runtime alone, without and with its optimizations, on all that `check` would run."""
    from tilegraph.verify.run import ModelRun, RunFailure, open_runner

    what = subject(seed)
    if what is None:
        return
    path = folder / f"{seed}.onnx"
    onnx.save(what.model, path)
    for optimize in (False, True):
        with suppress(RunFailure):
            runner = open_runner(ModelRun(str(path), optimize=optimize, threads=1), isolate=False)
            for feeds in (what.feeds, *(what.other(k) for k in range(OTHER_SIZES))):
                with suppress(RunFailure):
                    runner.run(feeds)


def dies(seed: int) -> bool:
    """Whether ONNX Runtime ends its process on the original, too."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        alone = multiprocessing.get_context("spawn").Process(target=_original, args=(seed, Path(folder)))
        alone.start()
        alone.join(LIMIT_S)
        if alone.is_alive():
            alone.kill()
            alone.join()
            return False
        return (alone.exitcode or 0) < 0


def fuzz(seconds: float, start: int, offload: str, batch: int = 40) -> tuple[Counter[str], list[tuple[int, str, str]]]:
    """How many graphs ended how, and the findings."""
    counts: Counter[str] = Counter()
    findings: list[tuple[int, str, str]] = []
    context = multiprocessing.get_context("spawn")
    # What nobody has written is -1.7e38 or an index far outside of everything, and no zeros as the system gives them.
    os.environ["MALLOC_PERTURB_"] = "1"
    until, seed = time.monotonic() + seconds, start
    while time.monotonic() < until:
        here, there = context.Pipe(duplex=False)
        seeds = list(range(seed, seed + batch))
        with tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
            child = context.Process(target=_child, args=(seeds, offload, Path(folder), there))
            child.start()
            there.close()
            for current in seeds:
                try:
                    outcome = here.recv() if here.poll(LIMIT_S) else (current, "TIMEOUT", f"over {LIMIT_S:.0f} s")
                except EOFError:
                    child.join()
                    outcome = (current, "dies" if dies(current) else "CRASH", f"exit code {child.exitcode}")
                seed = current + 1
                counts[outcome[1]] += 1
                if outcome[1].isupper():
                    findings.append(outcome)
                    print(f"seed {outcome[0]}: {outcome[1]}: {outcome[2]}", flush=True)
                if outcome[1] in ("CRASH", "TIMEOUT", "dies") or time.monotonic() > until:
                    break
            if child.is_alive():
                child.kill()
            child.join()
            here.close()
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--start", type=int, default=int(time.time()))
    parser.add_argument("--offload", choices=("all", "auto"), default="all")
    given = parser.parse_args()
    counts, findings = fuzz(given.seconds, given.start, given.offload)
    print(json.dumps({"graphs": sum(counts.values()), "start": given.start, **counts}), flush=True)
    for seed, kind, _ in findings[:10]:
        if kind in ("WRONG", "RUN", "OPTIMIZE"):
            print(f"saved as tests/fuzz/found/{shrink(seed, given.offload, kind)}.onnx", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
