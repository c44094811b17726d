"""Each pass alone and each pass left out, over the corpus.

    python -m tests.conformance.passes [--part 1/4] [--every 1] [--match TEXT] [--jobs 1]

Of every pass in the place that it has in the pipeline: `modified` says exactly whether the model changed, and a second
run changes nothing. Alone on the loaded model, and left out of the pipeline: the model is sound and answers as before.
So it does after all passes in random orders: a pass takes what it proves on the model that it gets, and what it misses
in another order costs time, never an answer.

Each model is checked in a process of its own and prints a line; `--part` takes a share, so that a long run can be
continued.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from tests.conformance.sweep import PART_HELP, part_of, share, sweep
from tests.conformance.sweep_cases import Case, Feeds, cases, open_case
from tilegraph import targets
from tilegraph.io import load
from tilegraph.io.bare import without_weights
from tilegraph.io.walk import all_graphs, values_of
from tilegraph.passes import Pass, PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.verify.compare import compare_exact, compare_floats, default_rtol, is_float, largest, wide

Sets = Sequence[tuple[Feeds, list[Any]]]
SLOW_S = 5.0  # of CPU time, of one pass on one model
LIMIT_S = 3600.0  # of wall time, for all that is done with one model


@dataclass(frozen=True)
class Problem:
    case: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.step}: {self.what}"


def digest(model: ir.Model) -> str:
    """Of the graph, its constants included."""
    found = hashlib.sha256(without_weights(model).SerializeToString(deterministic=True))
    for graph in (model.graph, *model.graph.subgraphs()):
        for name, value in sorted(graph.initializers.items()):
            tensor = value.const_value
            if tensor is not None and tensor.nbytes <= 1 << 16:
                found.update(name.encode() + tensor.tobytes() if tensor.dtype != ir.DataType.STRING else name.encode())
    return found.hexdigest()


def answers(model: Any, feeds: Feeds) -> list[Any] | None:
    """What ONNX Runtime says without optimizations; None if it refuses."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
    except Exception:
        return None


def difference(wanted: list[Any], found: list[Any] | None) -> str:
    if found is None:
        return "ONNX Runtime refuses the result"
    for at, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if not isinstance(a, np.ndarray):
            continue
        outcome = compare_exact(b, a)
        if is_float(a.dtype):
            rtol = default_rtol(a.dtype)
            with np.errstate(all="ignore"):
                outcome = compare_floats(b, wide(a), a, rtol, rtol * max(largest(wide(a)), 0.3) / 10)
        if outcome.problem:
            return f"output {at}: {outcome.problem}"
    return ""


def pipeline(offload: str = "all") -> list[Pass]:
    return list(targets.get("cpu").passes(targets.CompilerOptions(offload)))


def notes(model: ir.Model) -> list[str]:
    """What passes wrote next to the model for later ones (`meta`), which `digest` does not see."""
    found = []
    for graph in (*all_graphs(model), *(f.graph for f in model.functions.values())):
        for item in (*values_of(graph), *graph):
            if item.meta:
                found.append(f"{item.name}: {dict(item.meta)!r}")
        found.append(repr(dict(graph.meta)))
    return found


@dataclass(frozen=True)
class Place:
    """A pass where it stands in the pipeline: the model before it, and whether it changed anything."""

    before: ir.Model
    changed: bool
    seconds: float  # CPU time of its first run


def in_place(case: Case, model: ir.Model, places: list[Place]) -> Iterator[Problem]:
    """`modified` and idempotence, each pass where it stands in the pipeline; fills `places`."""
    model = model.clone()
    before = digest(model), notes(model)
    for step, again in zip(pipeline(), pipeline(), strict=True):
        kept, start = model.clone(), time.process_time()
        modified = step.run(model, PassContext()).modified
        seconds = time.process_time() - start
        after = digest(model), notes(model)
        places.append(Place(kept, after != before, seconds))
        if modified != (after[0] != before[0]):
            yield Problem(case.name, step.name, f"says modified={modified}, and the model "
                          f"{'changed' if after[0] != before[0] else 'is the same'}")
        second = again.run(model, PassContext()).modified
        before = digest(model), notes(model)
        if second or before[0] != after[0]:
            yield Problem(case.name, step.name, "a second run changes the model again")


def result_of(case: Case, model: ir.Model, label: str, steps: list[Pass], sets: Sets, known: bool = False,
              ) -> Iterator[Problem]:
    """`model` after `steps` is sound and answers as the original; `sets` are inputs and its answers. `known`: so does
    `model` as it is."""
    model = model.clone()
    before = digest(model)
    try:
        for step in steps:
            step.run(model, PassContext())
        check_model(model, onnx_checker=False)
    except Exception as error:
        yield Problem(case.name, label, f"{type(error).__name__}: {str(error)[:200]}")
        return
    if known and digest(model) == before:
        return
    data = ir.to_proto(model).SerializeToString()
    for feeds, wanted in sets:
        if problem := difference(wanted, answers(data, feeds)):
            yield Problem(case.name, label, problem)


def in_random_order(case: Case, model: ir.Model, number: int, sets: Sets) -> Iterator[Problem]:
    """All passes in an order that the model's name and `number` decide."""
    steps = pipeline()
    random.Random(f"{case.name} {number}").shuffle(steps)
    yield from result_of(case, model, f"order {number}: " + " ".join(p.name for p in steps), steps, sets)


def check(case: Case, one_in: int = 1, offset: int = 0, orders: int = 1,
          slow: dict[str, float] | None = None) -> list[Problem]:
    """Everything about one model; with `one_in` above 1 only some of the passes alone and left out. `orders`: how many
    random ones. `slow` gets the passes that took more than `SLOW_S`, and their seconds."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    path, feeds = open_case(case)
    known = [(f, a) for f in feeds if (a := answers(str(path), f)) is not None]
    model, places = load(path), list[Place]()
    found = list(in_place(case, model, places))
    if slow is not None:
        slow.update((p.name, at.seconds) for p, at in zip(pipeline(), places, strict=True) if at.seconds > SLOW_S)
    if not known:
        return found
    found += result_of(case, model, "loaded", [], known)
    found += result_of(case, model, "all passes", pipeline(), known)
    for k, step in enumerate(pipeline()):
        if (k + offset) % one_in == 0:
            found += result_of(case, model, f"{step.name} alone", [step], known, known=True)
            if places[k].changed:  # else it is the whole pipeline again
                found += result_of(case, places[k].before, f"without {step.name}", pipeline()[k + 1:], known)
    for number in range(orders):
        found += in_random_order(case, model, number, known)
    return found


def work(case: Case, orders: str, connection: Any) -> None:
    """The body of a child process: sends one result, as the sweep's does."""
    from tests.conformance.sweep_worker import Result

    result = Result(case.group, case.name, orders, "ort")
    slow: dict[str, float] = {}
    try:
        problems = check(case, orders=int(orders), slow=slow)
        if problems:
            result.status, result.detail = "WRONG", "\n  ".join(map(str, problems))
    except Exception as error:
        result.status, result.detail = "CRASH", f"{type(error).__name__}: {str(error)[:300]}"
    result.seconds, result.stages = time.process_time(), slow
    connection.send(result)
    connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--part", type=part_of, default=(0, 1), help=PART_HELP)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--match", default="")
    parser.add_argument("--orders", type=int, default=2, help="random orders of the passes for each model")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    given = parser.parse_args()
    chosen = share([c for c in cases(("corpus",)) if given.match in c.name][::given.every], given.part)
    if not chosen:
        print("no model of the corpus matches, or there is no corpus", file=sys.stderr)
        return 2
    counts = Counter[str]()

    def report(result: Any) -> None:
        counts[result.status] += 1
        words = "" if result.good else f": {result.status}\n  {result.detail}"
        slow = "".join(f", {name} {seconds:.1f} s" for name, seconds in result.stages.items())
        print(f"[{counts.total()}/{len(chosen)}] {result.name}, {result.seconds:.0f} s of CPU{slow}{words}", flush=True)

    results = sweep([(replace(c, limit=LIMIT_S), str(given.orders)) for c in chosen], given.jobs, report, work)
    bad = [r for r in results if not r.good]
    print(f"{len(results)} models, {len(bad)} with problems" + "".join(f"\n  {r.status} {r.name}" for r in bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
