"""Chooses the reference of each output and compares: the rules of docs/verify.md."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.verify import trace
from tilegraph.verify.compare import (
    Comparison,
    bfloat16,
    bound,
    compare_exact,
    compare_floats,
    default_rtol,
    epsilon,
    implausible,
    is_float,
    largest,
    max_error,
    shape_problem,
    wide,
)
from tilegraph.verify.draws import FEW, WITHIN, WITHIN_FEW, Draws
from tilegraph.verify.inputs import load_for_analysis
from tilegraph.verify.ladder import EXPECTED, ORT_DOUBLE, ORT_SAME, REFERENCE_DOUBLE, Ladder, expose, write
from tilegraph.verify.result import OutputResult
from tilegraph.verify.run import Feeds, ModelRun, RunFailure, Value, open_runner

Array = np.ndarray[Any, Any]
EXACT = "ORT, optimizations off (exact)"
SAME_COMPUTATION_EPS = 8.0
REQUESTED_TIMES = 2.0  # of the error of a lower precision that was asked for


@dataclass
class Sample:
    """One set of inputs and what the original answers. `failure` is ORT's message when the original refuses it."""

    feeds: Feeds
    sizes: str
    ort: list[Value]
    failure: str = ""
    seconds: float = 0.0  # of the run without optimizations
    again: list[Value] | None = None  # a second run, for models that draw random numbers
    optimized_by_ort: list[Value] | None = None
    double: tuple[str, list[Value]] | None = None
    requested: list[Value] | None = None  # in the lower precision that was asked for, by ORT
    nudged: list[Value] | None = None  # quantised and float64 models: with the last bit of the inputs moved


@dataclass
class _Evidence:
    """Whether the reference of an output varies at all, over samples and elements."""

    elements: int = 0
    first: Any = None
    varies: bool = False

    def add(self, array: Array) -> None:
        if not array.size:
            return
        if self.elements == 0:
            self.first = array.reshape(-1)[0]
        flat = array.reshape(-1)
        equal = flat == self.first
        if array.dtype.kind in "fcV" and self.first != self.first:
            equal = flat != flat
        self.varies |= not bool(np.all(equal))
        self.elements += int(array.size)

    def nothing_because(self) -> str:
        if self.elements == 0:
            return "its reference is empty"
        if self.varies:
            return ""
        if self.elements == 1 and isinstance(self.first, np.floating) and np.isfinite(self.first) and self.first != 0:
            return ""  # a single number, such as a loss: agreement is no accident
        return f"its reference is constant ({self.first!s} everywhere)"


@dataclass(frozen=True)
class _Measured:
    """A float array of one sample with its reference. `own` is None when ORT itself is the reference; `computed` is the
    coarsest dtype that it was computed in."""

    index: int
    key: str
    given: Array
    ort: Array
    reference: Array
    rung: str
    scale: float
    own: float | None
    drift: float | None
    computed: np.dtype[Any]
    requested: float | None  # the error of the lower precision that was asked for


def flatten(name: str, value: Value) -> dict[str, Array | None]:
    """Arrays by name: `s[0]`, `s[1]` for a sequence, `m[0]{key}` for maps."""
    if isinstance(value, list):
        found: dict[str, Array | None] = {f"len({name})": np.array(len(value))}
        for index, item in enumerate(value):
            found.update(flatten(f"{name}[{index}]", item))
        return found
    if isinstance(value, dict):
        found = {f"keys({name})": np.array([str(k) for k in sorted(value, key=str)], dtype=object)}
        for key in sorted(value, key=str):
            found.update(flatten(f"{name}{{{key}}}", np.asarray(value[key])))
        return found
    return {name: None if value is None else np.asarray(value)}


@dataclass
class Judge:
    """Compares candidates with the original's samples."""

    model: ir.Model
    path: Path
    samples: list[Sample]
    rtol: float | None
    atol: float | None
    threads: int | None
    large: bool
    expected: dict[str, Array]
    limit: float
    heavy: bool = False  # runs get a process each, see `memory`
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._values = {v.name or "": v for v in self.model.graph.outputs}
        self._quantised = trace.has_quantised_arithmetic(self.model)
        self._precision: dict[str, np.dtype[Any] | None] = {}
        self._selected: dict[str, list[tuple[Array, float] | None]] = {}
        feeds = [] if self.large or self.heavy else [s.feeds for s in self.samples if not s.failure]
        self._draws = Draws(self.path, feeds, self.threads, self.limit)

    def compare(self, of: str, names: list[str], answers: list[dict[str, Value] | None]) -> list[OutputResult]:
        """One result per output of the original that was compared on at least one sample."""
        results: list[OutputResult] = []
        for position, name in enumerate(names):
            result = OutputResult(name, of)
            evidence, compared = _Evidence(), False
            measured: list[_Measured] = []
            for index, (sample, answer) in enumerate(zip(self.samples, answers, strict=True)):
                if sample.failure or answer is None or name not in answer:
                    continue
                compared = True
                measured += self._sample(result, evidence, name, position, index, answer[name])
            if not compared:
                continue
            self._floats(result, name, position, measured)
            nothing = evidence.nothing_because()
            if nothing:
                result.proves = False
                note = f"{name!r} proves nothing: {nothing}"
                if note not in result.notes:
                    result.notes.append(note)
            results.append(result)
        return results

    def _sample(self, result: OutputResult, evidence: _Evidence, name: str, position: int, index: int,
                answer: Value) -> list[_Measured]:
        """Compares what is exact; returns the floats, whose bound needs all samples."""
        sample = self.samples[index]
        measured: list[_Measured] = []
        ort = flatten(name, sample.ort[position])
        given = flatten(name, answer)
        if list(ort) != list(given):
            self._reject(result, index, f"its structure is {list(given)}, not {list(ort)}")
            return measured
        again = flatten(name, sample.again[position]) if sample.again is not None else {}
        drifted = flatten(name, sample.optimized_by_ort[position]) if sample.optimized_by_ort is not None else {}
        double = flatten(name, sample.double[1][position]) if sample.double is not None else {}
        requested = flatten(name, sample.requested[position]) if sample.requested is not None else {}
        nudged = flatten(name, sample.nudged[position]) if sample.nudged is not None else {}
        for key, wanted in ort.items():
            found = given[key]
            if wanted is None or found is None:
                if (wanted is None) != (found is None):
                    self._reject(result, index, "an optional value is there in one and absent in the other")
                continue
            if key in again and (other := again[key]) is not None and not _identical(other, wanted):
                problem = shape_problem(found, wanted)
                if problem:
                    self._reject(result, index, problem)
                result.notes = list(dict.fromkeys([*result.notes, f"{key!r} is random: only its shape was compared"]))
                continue
            if key == name or not key.startswith(("len(", "keys(")):
                evidence.add(wanted)
            if is_float(wanted.dtype) or wanted.dtype.kind == "c":
                measured.append(self._measure(index, name, key, found, wanted, double.get(key), drifted.get(key),
                                              requested.get(key), nudged.get(key)))
            else:
                self._exact(result, index, name, found, wanted)
        return measured

    def _reject(self, result: OutputResult, index: int, problem: str) -> None:
        result.same = False
        result.notes.append(f"sample {index} ({self.samples[index].sizes}): {problem}")

    # -- floats -------------------------------------------------------------------------------------------------
    def _measure(self, index: int, name: str, key: str, given: Array, ort: Array, double: Array | None,
                 drifted: Array | None, requested: Array | None, nudged: Array | None) -> _Measured:
        computed = self._computed(name, ort.dtype)
        rung, reference = self._choose(index, key, ort, double, computed)
        ends = np.isfinite(wide(ort)) & np.isfinite(reference)
        own = max_error(wide(ort)[ends], reference[ends]) if rung != ORT_SAME else None
        drift = max_error(wide(drifted), reference) if drifted is not None and drifted.shape == ort.shape else None
        if self._quantised and own is None and nudged is not None and nudged.shape == ort.shape:
            # A last bit before a rounding to integers moves a step, and ORT's optimizations move few of them.
            drift = max(drift or 0.0, max_error(wide(nudged), reference))
        if own == 0.0 and computed == np.float64 and rung == ORT_DOUBLE:
            # The reference is the same computation, so that its errors have to be guessed: rows of nearly one number
            # lose many digits in a normalisation, which a last bit of the inputs shows.
            moved = max_error(wide(nudged), reference) if nudged is not None and nudged.shape == ort.shape else 0.0
            own = max(SAME_COMPUTATION_EPS * epsilon(ort.dtype) * largest(reference[ends]), drift or 0.0,
                      moved if np.isfinite(moved) else 0.0)
        elif own is not None and drift is not None and np.isfinite(drift):
            # Two draws of ONNX Runtime's error. One alone is too small by chance: on a detector its own optimizations
            # err by 2.3 of it. What they may add is limited, because a fault of theirs must not excuse ours.
            own = max(own, min(drift, 2 * own))
        asked = None
        if requested is not None and not (why := implausible(wide(requested), ort, False, bfloat16())):
            asked = max_error(wide(requested), reference)
        elif requested is not None:
            self._note(f"{key!r}: the lower precision that was asked for is no excuse: {why}")
        return _Measured(index, key, given, ort, reference, rung, largest(reference[ends]), own, drift, computed, asked)

    def _computed(self, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The coarsest dtype that output `name` of `dtype` was computed in: a cast to a wider one adds no digits."""
        if name not in self._precision:
            self._precision[name] = trace.precision(self._values[name])
        found = self._precision[name]
        return found if found is not None and is_float(dtype) and epsilon(found) > epsilon(dtype) else dtype

    def _floats(self, result: OutputResult, name: str, position: int, items: list[_Measured]) -> None:
        """Compares what was measured of one output. Its bound comes from all samples: the rounding errors of one small
        sample are too few to tell how large ORT's own are."""
        result.ort_error = max((m.own for m in items if m.own is not None), default=None)
        result.ort_drift = max((m.drift for m in items if m.drift is not None), default=None)
        result.requested_error = max((m.requested for m in items if m.requested is not None), default=None)
        for better in (True, False):
            group = [m for m in items if (m.own is not None) is better]
            if not group:
                continue
            own = max(m.own or 0.0 for m in group) if better else None
            drift = max(m.drift or 0.0 for m in group) if self._quantised else None
            rtol, atol = self._limits(group, own, drift)
            if own and self._just_out(group, atol):
                own = result.ort_error = max(own, self._drawn(result, name, position, group[0].computed))
                rtol, atol = self._limits(group, own, drift)
            for m in group:
                outcome = compare_floats(m.given, m.reference, m.ort, rtol, atol)
                if outcome.values and (origin := trace.index_origin(self._values[name])) is not None:
                    self._explain_by_ties(outcome, origin, name, m.index, m.given, m.ort)
                self._absorb(result, m.index, outcome, m.rung)
            if any((m.drift or 0.0) > atol + rtol * m.scale for m in group):
                result.notes.append("ORT's own optimizations take the original out of this bound too")

    def _limits(self, group: list[_Measured], own: float | None, drift: float | None) -> tuple[float, float]:
        """(rtol, atol) for the samples of an output that have the same kind of reference."""
        if self.rtol is not None or self.atol is not None:
            return self.rtol or 0.0, self.atol or 0.0
        rtol, atol = bound(max(m.scale for m in group), own, group[0].computed, drift)
        return rtol, max([atol, *(REQUESTED_TIMES * m.requested for m in group if m.requested is not None)])

    def _just_out(self, group: list[_Measured], atol: float) -> bool:
        """Whether another draw of ONNX Runtime's own error could matter."""
        in_double = all(m.rung in (ORT_DOUBLE, REFERENCE_DOUBLE) for m in group)
        if self.rtol is not None or self.atol is not None or not in_double:
            return False
        worst = max((max_error(wide(m.given), m.reference) for m in group if m.given.shape == m.reference.shape),
                    default=0.0)
        few = sum(m.given.size for m in group) <= FEW
        return atol < worst <= (WITHIN_FEW if few else WITHIN) * atol

    def _drawn(self, result: OutputResult, name: str, position: int, computed: np.dtype[Any]) -> float:
        """ONNX Runtime's error in output `name` on inputs that are moved a little."""
        found, count = 0.0, 0
        for plain, double in self._draws.pairs():
            exact = flatten(name, double[position])
            for key, ort in flatten(name, plain[position]).items():
                reference = exact.get(key)
                if ort is None or reference is None or not is_float(ort.dtype):
                    continue
                if not implausible(wide(reference), ort, self._quantised, computed):
                    found, count = max(found, max_error(wide(ort), wide(reference))), count + 1
        if count:
            result.notes.append(f"ORT's own error was drawn {count} more times, on inputs moved a little")
        return found

    def _choose(self, index: int, key: str, ort: Array, double: Array | None,
                computed: np.dtype[Any]) -> tuple[str, Array]:
        """The best reference that is the same computation as the original's."""
        sample = self.samples[index]
        choices: list[tuple[str, Array]] = []
        if double is not None and sample.double is not None:
            choices.append((sample.double[0], double))
        if key in self.expected:
            choices.append((EXPECTED, self.expected[key]))
        for rung, array in choices:
            reference = wide(array)
            why = implausible(reference, ort, self._quantised, computed) if ort.dtype.kind != "c" else ""
            if not why:
                return rung, reference
            self._note(f"{key!r}: {rung} is not used: {why}")
        return ORT_SAME, wide(ort)

    # -- integers, bools, strings -------------------------------------------------------------------------------
    def _exact(self, result: OutputResult, index: int, name: str, given: Array, ort: Array) -> None:
        value = self._values[name]
        one_step = ort.dtype in (np.dtype(np.int8), np.dtype(np.uint8)) and trace.is_quantised(value)
        outcome = compare_exact(given, ort, one_step=one_step)
        if outcome.values and ort.dtype.kind in "iu":
            origin = trace.index_origin(value)
            if origin is not None:
                self._explain_by_ties(outcome, origin, name, index, given, ort)
        self._absorb(result, index, outcome, EXACT)

    def _explain_by_ties(self, outcome: Comparison, origin: trace.IndexOrigin, name: str, index: int, given: Array,
                         ort: Array) -> None:
        selected = self._selected_values(name, origin)[index]
        if selected is None:
            outcome.notes.append("whether it is a tie could not be checked")
            return
        data, limit = selected
        why = trace.ties(origin, ort, given, data, limit)
        if why is None:
            outcome.notes.append(f"sample {index}: other indices, of values that tie within {limit:.3g}")
            outcome.problem = ""
        else:
            outcome.problem += f"; {why}"

    def _selected_values(self, name: str, origin: trace.IndexOrigin) -> list[tuple[Array, float] | None]:
        """Per sample the values that an index output selects from, in the best precision, and the bound for a tie."""
        if name in self._selected:
            return self._selected[name]
        found: list[tuple[Array, float] | None] = [None] * len(self.samples)
        self._selected[name] = found
        if self.large:
            return found
        feeds = [None if s.failure else s.feeds for s in self.samples]
        exact = Ladder(self.path, threads=self.threads, limit=self.limit, extra=(origin.data,),
                       heavy=self.heavy).run(feeds)
        model = load_for_analysis(self.path)
        expose(model, (origin.data,))
        place = next((i for i, v in enumerate(model.graph.outputs) if v.name == origin.data), None)
        if place is None:
            return found
        with tempfile.TemporaryDirectory(prefix="tilegraph-verify-") as folder:
            try:
                what = ModelRun(write(model, Path(folder) / "exposed.onnx"), threads=self.threads, heavy=self.heavy)
                with closing(open_runner(what, isolate=self.heavy)) as runner:
                    for index, sample in enumerate(feeds):
                        if sample is None:
                            continue
                        ort = np.asarray(runner.run(sample)[place])
                        rung = exact[index]
                        better = np.asarray(rung[1][place]) if rung is not None else None
                        found[index] = self._tie_bound(ort, better)
            except RunFailure:
                return found
        return found

    def _tie_bound(self, ort: Array, better: Array | None) -> tuple[Array, float]:
        if not is_float(ort.dtype):
            return ort, 0.0
        if self.rtol is not None or self.atol is not None:
            return wide(ort), (self.atol or 0.0) + (self.rtol or 0.0) * largest(wide(ort))
        if better is not None and not implausible(wide(better), ort, self._quantised):
            own = max_error(wide(ort), wide(better))
            return wide(better), bound(largest(wide(better)), own, ort.dtype)[1]
        return wide(ort), default_rtol(ort.dtype) * largest(wide(ort)) / 10

    # -- bookkeeping --------------------------------------------------------------------------------------------
    def _absorb(self, result: OutputResult, index: int, outcome: Comparison, rung: str) -> None:
        if outcome.problem:
            self._reject(result, index, outcome.problem)
        result.notes += [n for n in outcome.notes if n not in result.notes]
        result.max_abs = max(result.max_abs, outcome.max_abs)
        result.max_rel = max(result.max_rel, outcome.max_rel)
        result.rtol, result.atol = max(result.rtol, outcome.rtol), max(result.atol, outcome.atol)
        result.off_by_one += outcome.off_by_one
        result.elements += outcome.elements
        if rung not in result.reference:  # several rungs over the samples: all are named
            result.reference = f"{result.reference} and {rung}" if result.reference else rung

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _identical(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.all((a == b) | ((a != a) & (b != b))))
