"""`verify`: runs the original and the optimized model on the same inputs and says whether the answers are the same."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.errors import InputError, NotEnoughMemory, UsageError
from tilegraph.spec.digest import check_sha256
from tilegraph.spec.given import GivenDims
from tilegraph.system import gigabytes
from tilegraph.verify import trace
from tilegraph.verify.arrays import given_arrays
from tilegraph.verify.inputs import InputMaker, load_for_analysis, nudged
from tilegraph.verify.judge import Judge, Sample
from tilegraph.verify.ladder import LARGE_BYTES, REFERENCE_LIMIT_S, Ladder, weight_bytes
from tilegraph.verify.memory import HEAVY_BYTES, live_bytes
from tilegraph.verify.requested import requested
from tilegraph.verify.result import VerifyResult
from tilegraph.verify.run import Feeds, MemoryShort, ModelRun, RunFailure, Runner, Value, open_runner
from tilegraph.verify.source import Candidate, candidates, frozen_dims, original_path
from tilegraph.verify.written import as_ort_runs

CANDIDATE_LIMIT_S = 60.0  # plus 100 times what the original took


def verify(original: str | Path, optimized: str | Path, *, inputs: str | Path | Mapping[str, Any] | None = None,
           samples: int = 3, seed: int = 0, rtol: float | None = None, atol: float | None = None,
           threads: int | None = None, dims: GivenDims | None = None,
           reference_limit: float = REFERENCE_LIMIT_S, ort_optimizations: bool = True,
           expect_sha256: str | None = None, progress: Callable[[str], None] | None = None) -> VerifyResult:
    """Whether `optimized` (a .tilegraph folder or any .onnx file) answers as `original` (an .onnx file) does.

    `inputs` (an .npz path or a dict of arrays) replaces the `samples` seeded random inputs; it may hold expected
    outputs as `out_<name>`. `rtol` and `atol` replace the bound `|error| <= atol + rtol * |reference|` (the one that
    is not given is 0). `dims` fixes symbolic dims by name, as do those that the folder was made with. `reference_limit`
    is in seconds, for one run of onnx.reference. `ort_optimizations` False runs the optimized model without ONNX
    Runtime's own optimizations of what is left to it. `expect_sha256` is what `optimize` printed for `optimized`,
    compared before anything is loaded.
    The rules are in docs/verify.md.

    Raises InputError for a file that cannot be read, inputs that do not fit, and when no reference could run;
    NotEnoughMemory where a run needs more memory than is free.
    """
    if samples < 1:
        raise UsageError(f"--samples {samples}: at least one sample is needed")
    if any(t is not None and not (t >= 0 and np.isfinite(t)) for t in (rtol, atol)):
        raise UsageError("--rtol and --atol are numbers that are not negative")
    source = original_path(original)
    if expect_sha256 is not None:
        check_sha256(Path(optimized), expect_sha256)
    job = _Job(source, candidates(optimized), samples, seed, threads, progress or (lambda _: None),
               ort_optimizations)
    result = VerifyResult(str(original), str(optimized), seed=seed, versions=_versions())
    if inputs is None and (frozen := frozen_dims(optimized)):
        dims = {**frozen, **(dims or {})}
    with tempfile.TemporaryDirectory(prefix="tilegraph-verify-") as folder:
        job.load(inputs, dims, Path(folder))
        try:
            return _compared(job, result, optimized, rtol, atol, reference_limit)
        except MemoryShort as short:
            raise NotEnoughMemory(
                f"{original}: {job.doing}: {short}; about {gigabytes(job.live)} of values are alive at once. End other "
                "programs, or give smaller inputs (--dim, --inputs)") from short


def _compared(job: _Job, result: VerifyResult, optimized: str | Path, rtol: float | None, atol: float | None,
              reference_limit: float) -> VerifyResult:
    source, threads = job.original, job.threads
    job.run_original(result)
    rungs: list[tuple[str, list[Value]] | None] = [None] * len(job.samples)
    if job.large:
        result.notes.append(f"no float64 reference: the weights take more than {LARGE_BYTES / 1e9:.1f} GB")
    else:
        ladder = Ladder(source, threads=threads, limit=reference_limit, progress=job.says, heavy=job.heavy)
        rungs = ladder.run([None if s.failure else s.feeds for s in job.samples])
        result.notes += ladder.notes
    for sample, rung in zip(job.samples, rungs, strict=True):
        sample.double = rung
    job.run_requested(optimized, result)
    judge = Judge(job.model, source, job.samples, rtol=rtol, atol=atol, threads=threads, large=job.large,
                  heavy=job.heavy, expected=job.expected, limit=reference_limit)
    for candidate in job.candidates:
        job.run_candidate(candidate, judge, result)
    result.feeds = [s.feeds for s in job.samples if not s.failure]
    result.samples = len(result.feeds)
    result.notes += judge.notes
    if not result.problems and not any(o.proves for o in result.outputs) and all(o.same for o in result.outputs):
        result.inconclusive = job.why_inconclusive(result)
    return result


@dataclass
class _Job:
    original: Path
    candidates: list[Candidate]
    count: int
    seed: int
    threads: int | None
    progress: Callable[[str], None]
    ort_optimizations: bool = True
    samples: list[Sample] = field(default_factory=list)
    expected: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    large: bool = False
    live: int = 0  # bytes of values that are alive at once in the original, on its first inputs
    doing: str = ""  # for messages
    worked: int | None = None  # the place of the sizes that the original last accepted

    def load(self, inputs: str | Path | Mapping[str, Any] | None, dims: GivenDims | None, folder: Path) -> None:
        """Reads the model and the given inputs, or prepares the makers of random ones. Files go to `folder`."""
        self.model = load_for_analysis(self.original)
        self.original, written = as_ort_runs(self.model, self.original, folder)
        self.large = weight_bytes(self.model) > LARGE_BYTES
        self.maker: InputMaker | None = None
        self.given: Feeds | None = None
        if inputs is None:
            self.maker = InputMaker(self.model, dims)
            self.notes = written
            return
        names = [v.name or "" for v in self.model.graph.outputs]
        self.given, self.expected, self.notes = given_arrays(inputs, list(self.model.graph.inputs), names)
        self.notes += written

    def _run_of(self, path: Path, *, optimize: bool = False, plugin: bool = False) -> ModelRun:
        return ModelRun(str(path), optimize=optimize, plugin=plugin, threads=self.threads, prepacking=not self.large,
                        heavy=self.heavy)

    @property
    def heavy(self) -> bool:
        """Whether runs take so much memory that each gets a process, see `memory`."""
        return self.live >= HEAVY_BYTES

    @property
    def isolate(self) -> bool:
        return self.large or self.heavy

    def says(self, doing: str) -> None:
        self.doing = doing
        self.progress(doing)

    def run_original(self, result: VerifyResult) -> None:
        """Fills `samples`: the inputs and what ORT answers without and with optimizations."""
        result.notes += self.notes
        self.live = live_bytes(self.model, self.given if self.given is not None else next(self._made(0))[2])
        self.says("original: ORT, optimizations off")
        try:
            runner = open_runner(self._run_of(self.original), isolate=self.isolate)
        except MemoryShort:
            raise
        except RunFailure as failure:
            raise InputError(f"{self.original}: ONNX Runtime cannot load the original, so there is nothing to compare "
                             f"with: {failure}") from failure
        try:
            self.signature = runner.signature
            if self.given is not None:
                self.samples = [self._first_run(runner, [(0, "the given inputs", self.given)], 0, result)]
            else:
                self.samples = [self._first_run(runner, self._made(i), i, result) for i in range(self.count)]
            if random := trace.random_ops(self.model):
                result.notes.append(f"the original draws random numbers ({', '.join(random)}): outputs that change "
                                    "from run to run are not compared")
                for sample in self.samples:
                    if not sample.failure:
                        sample.again = runner.run(sample.feeds)
            elif trace.has_quantised_arithmetic(self.model):
                for sample in self.samples:
                    if not sample.failure:
                        sample.nudged = self._answer(runner, nudged(sample.feeds))
            elif any("double" in kind for _, kind in self.signature[1]):  # nothing finer tells ORT's own error
                for sample in self.samples:
                    if not sample.failure:
                        sample.nudged = self._answer(runner, nudged(sample.feeds, (np.float64,)))
        finally:
            runner.close()
        if all(s.failure for s in self.samples):
            result.notes.append(f"the original runs on no sample: {self.samples[0].failure}")
        self.says("original: ORT, all optimizations")
        try:
            runner = open_runner(self._run_of(self.original, optimize=True), isolate=self.isolate)
            try:
                for sample in self.samples:
                    if not sample.failure:
                        sample.optimized_by_ort = runner.run(sample.feeds)
            finally:
                runner.close()
        except RunFailure as failure:
            result.notes.append(f"ORT's own drift is not known: with optimizations it fails ({failure})")

    @staticmethod
    def _answer(runner: Runner, feeds: Feeds) -> list[Value] | None:
        try:
            return runner.run(feeds)
        except RunFailure:  # moved inputs need not be valid
            return None

    def _made(self, index: int) -> Iterator[tuple[int, str, Feeds]]:
        assert self.maker is not None
        for place, binding in self.maker.attempts(self.seed, index, self.worked):
            yield place, self.maker.sizes.describe(binding), self.maker.make(self.seed, index, binding)

    def _first_run(self, runner: Runner, attempts: Iterable[tuple[int, str, Feeds]], index: int,
                   result: VerifyResult) -> Sample:
        """The first attempt that the original runs and answers with more than empty arrays; else the first that it
        runs, else the first with its failure."""
        refused: list[str] = []
        fallback: Sample | None = None
        for place, sizes, feeds in attempts:
            try:
                start = time.perf_counter()
                sample = Sample(feeds, sizes, runner.run(feeds))
                sample.seconds = time.perf_counter() - start
            except MemoryShort:
                raise
            except RunFailure as failure:
                fallback = fallback or Sample(feeds, sizes, [], str(failure))
                refused.append(f"refuses {sizes}")
                continue
            if all(isinstance(v, np.ndarray) and v.size == 0 for v in sample.ort):
                fallback = sample if fallback is None or fallback.failure else fallback
                refused.append(f"answers {sizes} with empty outputs")
                continue
            self.worked = place
            if refused:
                result.notes.append(f"sample {index}: the original {refused[0]}; used {sizes}")
            return sample
        assert fallback is not None
        return fallback

    def run_requested(self, optimized: str | Path, result: VerifyResult) -> None:
        """Fills `requested` of the samples where the user asked for a lower precision."""
        with tempfile.TemporaryDirectory(prefix="tilegraph-verify-") as folder:
            found = requested(self.original, optimized, Path(folder))
            if found is None:
                return
            self.says(f"{found.what}: ORT, optimizations off")
            try:
                if found.path is None:
                    raise RunFailure(found.reason)
                with closing(open_runner(self._run_of(found.path), isolate=self.isolate)) as runner:
                    for sample in self.samples:
                        if not sample.failure:
                            sample.requested = runner.run(sample.feeds)
            except MemoryShort:  # without its error nothing can be said
                raise
            except RunFailure as failure:
                result.notes.append(f"the error of {found.what}, which was asked for, is not known ({failure}); the "
                                    "bound is that of the original's precision")
                return
            result.notes.append(f"{found.what} was asked for: the bound is twice the error that ORT makes with the "
                                "same roundings")

    def run_candidate(self, candidate: Candidate, judge: Judge, result: VerifyResult) -> None:
        """Runs and compares one candidate; what is wrong with it as a whole goes to `result.problems`."""
        self.says(f"{candidate.of}: {candidate.path.name}")
        try:
            runner = open_runner(self._run_of(candidate.path, optimize=self.ort_optimizations, plugin=candidate.plugin),
                                 isolate=candidate.plugin or self.isolate)
        except MemoryShort:
            raise
        except RunFailure as failure:
            result.problems.append(f"the {candidate.of} model cannot be loaded: {failure}")
            return
        try:
            result.problems += _interface_problems(candidate.of, self.signature, runner.signature)
            names = [n for n, _ in runner.signature[1]]
            answers: list[dict[str, Value] | RunFailure] = []
            for sample in self.samples:
                try:
                    # A child that hangs must not hang verify.
                    limit = CANDIDATE_LIMIT_S + 100 * sample.seconds
                    answers.append(dict(zip(names, runner.run(sample.feeds, limit), strict=True)))
                except MemoryShort:
                    raise
                except RunFailure as failure:
                    answers.append(failure)
        finally:
            runner.close()
        for index, (sample, answer) in enumerate(zip(self.samples, answers, strict=True)):
            if isinstance(answer, RunFailure) and not sample.failure:
                result.problems.append(f"the {candidate.of} model fails on sample {index} ({sample.sizes}), the "
                                       f"original does not: {answer}")
            elif sample.failure and not isinstance(answer, RunFailure):
                result.notes.append(f"sample {index} proves nothing: the original fails ({sample.failure}), the "
                                    f"{candidate.of} model answers")
        outputs = judge.compare(candidate.of, [n for n, _ in self.signature[1]],
                                [None if isinstance(a, RunFailure) else a for a in answers])
        result.outputs += outputs

    def why_inconclusive(self, result: VerifyResult) -> str:
        if all(s.failure for s in self.samples):
            return f"the original runs on none of the samples: {self.samples[0].failure}"
        if not result.outputs:
            return "no output was compared"
        reasons = dict.fromkeys(n for o in result.outputs for n in o.notes if not o.proves)
        return "equal outputs prove nothing here: " + ("; ".join(reasons) or "no output was compared")


def _interface_problems(of: str, wanted: tuple[list[tuple[str, str]], list[tuple[str, str]]],
                        given: tuple[list[tuple[str, str]], list[tuple[str, str]]]) -> list[str]:
    problems: list[str] = []
    for what, want, have in (("input", wanted[0], given[0]), ("output", wanted[1], given[1])):
        types, have_types = dict(want), dict(have)
        for name in have_types:
            if name not in types:
                problems.append(f"the {of} model has {what} {name!r}, which the original lacks")
        for name, kind in types.items():
            if name not in have_types:
                problems.append(f"the {of} model lacks {what} {name!r}")
            elif what == "input" and have_types[name] != kind:
                problems.append(f"the {of} model wants {what} {name!r} as {have_types[name]}, the original as {kind}")
        if set(types) == set(have_types) and list(types) != list(have_types):
            problems.append(f"the {what}s of the {of} model are in another order: {', '.join(have_types)}")
    return problems


def _versions() -> dict[str, str]:
    import onnx
    import onnxruntime

    return {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__, "onnx_ir": ir.__version__,
            "numpy": np.__version__}
