"""Each pass alone and each pass left out, over the corpus.

    python -m tests.conformance.passes [--every 1] [--match TEXT]

Of every pass in the place that it has in the pipeline: `modified` says exactly whether the model changed, and a second
run changes nothing. Alone on the loaded model, and left out of the pipeline: the model is sound and answers as before.
So it does after all passes in random orders: a pass takes what it proves on the model that it gets, and what it misses
in another order costs time, never an answer.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from tests.conformance.sweep_cases import Case, Feeds, cases, open_case
from tilegraph import targets
from tilegraph.io import load
from tilegraph.io.bare import without_weights
from tilegraph.passes import Pass, PassContext
from tilegraph.passes.invariants import check_model
from tilegraph.verify.compare import compare_exact, compare_floats, default_rtol, is_float, largest, wide


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


def in_place(case: Case, path: Path) -> Iterator[Problem]:
    """`modified` and idempotence, each pass where it stands in the pipeline."""
    model = load(path)
    before = digest(model)
    for step, again in zip(pipeline(), pipeline(), strict=True):
        modified = step.run(model, PassContext()).modified
        after = digest(model)
        if modified != (after != before):
            yield Problem(case.name, step.name, f"says modified={modified}, and the model "
                          f"{'changed' if after != before else 'is the same'}")
        second = again.run(model, PassContext()).modified
        before = digest(model)
        if second or before != after:
            yield Problem(case.name, step.name, "a second run changes the model again")


def result_of(case: Case, path: Path, label: str, steps: list[Pass], sets: list[tuple[Feeds, list[Any]]],
              ) -> Iterator[Problem]:
    model = load(path)
    try:
        for step in steps:
            step.run(model, PassContext())
        check_model(model, onnx_checker=False)
    except Exception as error:
        yield Problem(case.name, label, f"{type(error).__name__}: {str(error)[:200]}")
        return
    data = ir.to_proto(model).SerializeToString()
    for feeds, wanted in sets:
        if problem := difference(wanted, answers(data, feeds)):
            yield Problem(case.name, label, problem)


def in_random_order(case: Case, path: Path, number: int, sets: list[tuple[Feeds, list[Any]]]) -> Iterator[Problem]:
    """All passes in an order that the model's name and `number` decide."""
    steps = pipeline()
    random.Random(f"{case.name} {number}").shuffle(steps)
    yield from result_of(case, path, f"order {number}: " + " ".join(p.name for p in steps), steps, sets)


def check(case: Case, one_in: int = 1, offset: int = 0, orders: int = 1) -> list[Problem]:
    """Everything about one model; with `one_in` above 1 only some of the passes alone and left out. `orders`: how many
    random ones."""
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)
    path, feeds = open_case(case)
    known = [(f, a) for f in feeds if (a := answers(str(path), f)) is not None]
    found = list(in_place(case, path))
    for k, step in enumerate(pipeline()):
        if known and (k + offset) % one_in == 0:
            found += result_of(case, path, f"{step.name} alone", [step], known)
            rest = [p for p in pipeline() if p.name != step.name]
            found += result_of(case, path, f"without {step.name}", rest, known)
    for number in range(orders if known else 0):
        found += in_random_order(case, path, number, known)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--match", default="")
    parser.add_argument("--orders", type=int, default=2, help="random orders of the passes for each model")
    given = parser.parse_args()
    chosen = [c for c in cases(("corpus",)) if given.match in c.name][::given.every]
    if not chosen:
        print("no model of the corpus matches, or there is no corpus", file=sys.stderr)
        return 2
    count = 0
    for case in chosen:
        for problem in check(case, orders=given.orders):
            count += 1
            print(problem, flush=True)
    print(f"{len(chosen)} models, {count} problems")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
