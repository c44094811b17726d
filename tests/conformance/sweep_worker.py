"""One model from file to verdict, in a process of its own: optimize, save, serve, compare with ONNX Runtime."""

from __future__ import annotations

import re
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.conformance.sweep_cases import Case, Feeds, open_case
from tilegraph.compiler import optimize
from tilegraph.errors import InputError
from tilegraph.spec.artifact import EP_NAME, MODEL_FILE
from tilegraph.verify import verify
from tilegraph.verify.compare import (
    Comparison,
    compare_exact,
    compare_floats,
    default_rtol,
    epsilon,
    is_float,
    largest,
    wide,
)
from tilegraph.verify.inputs import load_for_analysis
from tilegraph.verify.judge import flatten
from tilegraph.verify.ladder import Ladder
from tilegraph.verify.run import ModelRun, RunFailure, Value, open_runner
from tilegraph.verify.trace import precision

GOOD = ("kernel", "alone", "ort", "unrunnable", "refused")
MEMORY = 12 << 30  # bytes of address space
THREADS = 2


@dataclass
class Result:
    """`status`: "kernel" (same answers, some of it in our kernels), "alone" (ONNX Runtime cannot run the original, our
    kernels give the answers of ONNX's reference), "ort" (same answers, all in ONNX Runtime),
    "unrunnable" (ONNX Runtime cannot run the original on any input), "refused" (a stated limit: an opset below 7), or
    what went wrong: WRONG, OPTIMIZE, LOAD, RUN, CRASH, TIMEOUT. `refusals` counts the most frequent reasons, numbers
    left out."""

    group: str
    name: str
    offload: str
    status: str = ""
    detail: str = ""
    seconds: float = 0.0
    optimize_s: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    regions: int = 0
    nodes_before: int = 0
    nodes_after: int = 0
    ep_nodes: int = 0
    judged_in_full: int = 0
    refusals: list[tuple[str, int]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.status in GOOD

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def work(case: Case, offload: str, connection: Any) -> None:
    """The body of the child process: sends one `Result`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    connection.send(run_case(case, offload))
    connection.close()


def run_case(case: Case, offload: str) -> Result:
    """Never raises for what the model or the project does wrong: the result carries it."""
    result = Result(case.group, case.name, offload)
    start = time.perf_counter()
    try:
        _run(case, result)
    except Exception as error:
        import traceback

        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        result.status = result.status or "CRASH"
        result.detail = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:300]}"
    result.seconds = time.perf_counter() - start
    return result


def _run(case: Case, result: Result) -> None:
    path, feeds = open_case(case)
    references, why = answers_of(ModelRun(str(path), threads=THREADS), feeds)
    with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
        result.status = "OPTIMIZE"
        start = time.perf_counter()
        try:
            model = optimize(path, offload=result.offload)
            folder = model.save(Path(scratch) / "model.tilegraph", force=True)
        except InputError as error:
            if all(r is None for r in references):
                result.status, result.detail = "unrunnable", f"{why}; refused with: {error}"
                return
            if "knows opsets" not in str(error):
                raise
            result.status, result.detail = "refused", str(error)
            return
        result.optimize_s = time.perf_counter() - start
        summary = model.summary
        result.stages = {k: round(v, 3) for k, v in summary.seconds.items()}
        result.regions, result.nodes_before = summary.regions, summary.nodes_before
        result.nodes_after, result.ep_nodes = summary.nodes_after, summary.engines.get(EP_NAME, 0)
        result.refusals = Counter(_kind(r["reason"]) for r in summary.refusals).most_common(4)
        if all(r is None for r in references):
            result.status, result.detail = "unrunnable", why
            if result.ep_nodes:
                _alone(path, folder, feeds, result)
            return
        result.status = "LOAD"
        served = ModelRun(str(folder / MODEL_FILE), optimize=True, plugin=True, threads=THREADS)
        answers, why = answers_of(served, feeds, references)
        result.status = "WRONG"
        for given, wanted, found in zip(feeds, references, answers, strict=True):
            if wanted is None:
                continue
            if found is None:
                result.status, result.detail = "LOAD" if all(a is None for a in answers) else "RUN", why
                return
            problem = differs(path, folder, given, wanted, found, result)
            if problem:
                result.detail = problem
                return
        result.status = "kernel" if result.ep_nodes else "ort"


def _alone(path: Path, folder: Path, feeds: list[Feeds], result: Result) -> None:
    """What our kernels make of a model that ONNX Runtime cannot run, against the same model in float64, or else ONNX's
    reference as it is (whose float16 rounds after every addition)."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return  # its types contradict each other: any answer is as good as another
    answers, _ = answers_of(ModelRun(str(folder / MODEL_FILE), optimize=True, plugin=True, threads=THREADS), feeds)
    exact = Ladder(path, threads=THREADS, limit=20.0).run(list(feeds))
    outputs = {v.name: v for v in load_for_analysis(path).graph.outputs}
    for given, found, better in zip(feeds, answers, exact, strict=True):
        if found is None:
            return
        try:
            with np.errstate(all="ignore"):
                wanted = better[1] if better is not None else ReferenceEvaluator(str(path)).run(None, dict(given))
        except Exception:  # the reference has gaps of its own, and raises whatever numpy raises
            return
        for (name, ours), theirs in zip(found.items(), wanted, strict=True):
            reference = np.asarray(theirs)
            if is_float(reference.dtype):
                with np.errstate(all="ignore"):
                    reference = wide(reference).astype(np.asarray(ours).dtype)
                rtol = max(default_rtol(d) for d in (reference.dtype, precision(outputs[name])) if d is not None)
                problem = compare_floats(np.asarray(ours), wide(reference), reference, rtol,
                                         rtol * largest(wide(reference)) / 10).problem
            else:
                problem = compare_exact(np.asarray(ours), reference).problem
            if problem:
                result.status, result.detail = "WRONG", f"{name}: {problem} (ONNX's reference)"
                return
    result.status = "alone"


def _kind(reason: str) -> str:
    return re.sub(r"'[^']*'|\[[^]]*\]|\b\w*\d\w*\b", "_", reason)[:90]


def answers_of(what: ModelRun, feeds: list[Feeds], wanted: list[Any] | None = None) -> tuple[list[Any], str]:
    """The named outputs for each set of inputs (None where the run fails, or where nothing is wanted), and why."""
    try:
        runner = open_runner(what, isolate=False)
    except RunFailure as failure:
        return [None] * len(feeds), str(failure)
    names = [name for name, _ in runner.signature[1]]
    found: list[dict[str, Value] | None] = []
    why = ""
    for k, given in enumerate(feeds):
        if wanted is not None and wanted[k] is None:
            found.append(None)
            continue
        try:
            found.append(dict(zip(names, runner.run(given), strict=True)))
        except RunFailure as failure:
            found.append(None)
            why = str(failure)
    runner.close()
    return found, why


def differs(path: Path, folder: Path, feeds: Feeds, wanted: dict[str, Value], found: dict[str, Value],
             result: Result) -> str:
    """What is wrong with the answers; "" if nothing is.

    Within 4 eps of the largest value of what ONNX Runtime gives without optimizations, they are the same by any of
    verify's rules. What is further away is judged by `verify` in full: with a float64 reference and ORT's own error.
    """
    if not (list(wanted) == list(found) and all(close(n, wanted[n], found[n]) for n in wanted)):
        result.judged_in_full += 1
        judged = verify(path, folder, inputs=feeds, threads=THREADS, reference_limit=20.0)
        bad = [f"{o.name}: max_abs {o.max_abs:.3g} (bound {o.atol:.3g} + {o.rtol:.3g} rel), ORT's own {o.ort_error}, "
               + "; ".join(o.notes) for o in judged.outputs if not o.same]
        return "; ".join([*judged.problems, *bad])[:600]
    return ""


def close(name: str, wanted: Value, found: Value) -> bool:
    a, b = flatten(name, wanted), flatten(name, found)
    return list(a) == list(b) and all(_near(a[k], b[k]) for k in a)


def _near(wanted: Any, found: Any) -> bool:
    if wanted is None or found is None:
        return wanted is found
    outcome: Comparison
    if is_float(wanted.dtype):
        reference = wide(wanted)
        atol = 4 * epsilon(wanted.dtype) * largest(reference)
        with np.errstate(all="ignore"):
            outcome = compare_floats(found, reference, wanted, 0.0, atol)
    else:
        outcome = compare_exact(found, wanted)
    return not outcome.problem
