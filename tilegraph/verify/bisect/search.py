"""The search: what was given, then the passes, then the kernels, then ONNX Runtime; and the smallest piece of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from tilegraph.compiler import list_passes
from tilegraph.emit import read_folder
from tilegraph.errors import InputError, UsageError
from tilegraph.io import load, save
from tilegraph.spec.artifact import MANIFEST_FILE
from tilegraph.spec.digest import sha256_file
from tilegraph.verify.bisect.cut import Array, record, save_inputs
from tilegraph.verify.bisect.finding import Finding
from tilegraph.verify.bisect.kernels import (
    PASS_OF,
    Wrong,
    check,
    composites,
    first_bad_outputs,
    kind_of,
    wrong_kernels,
)
from tilegraph.verify.bisect.oracle import Options, Oracle, options_of
from tilegraph.verify.bisect.shrink import Piece, Shrinker
from tilegraph.verify.bisect.stages import Stage, first_wrong, stages
from tilegraph.verify.result import VerifyResult
from tilegraph.verify.run import Feeds, RunFailure
from tilegraph.verify.source import read_model

LIMIT_S = 300.0
FILES = ("model.onnx", "model.onnx.data", "candidate.onnx", "candidate.onnx.data", "inputs.npz", "finding.json")


def bisect(result: VerifyResult, folder: str | Path, *, threads: int | None = None, rtol: float | None = None,
           atol: float | None = None, limit: float = LIMIT_S,
           progress: Callable[[str], None] | None = None) -> Finding:
    """What makes the optimized model of `result` (which `verify` gave) differ from its original, and a reproduction of
    it in `folder`. Where the answers are the same, every kernel is checked by itself.

    `limit`: seconds for making the reproduction small; the search itself has no limit. The rules and tolerances are
    those of `verify`. Raises UsageError if `folder` holds anything but an earlier reproduction, InputError if the
    original cannot be optimized.
    """
    place = _prepared(Path(folder))
    with tempfile.TemporaryDirectory(prefix="tilegraph-bisect-") as work:
        oracle = Oracle(Path(work), threads=threads, rtol=rtol, atol=atol)
        return _Search(result, place, oracle, limit, progress or (lambda _: None)).run()


class _Search:
    def __init__(self, result: VerifyResult, place: Path, oracle: Oracle, limit: float,
                 progress: Callable[[str], None]) -> None:
        self.original, self.optimized = Path(result.original), Path(result.optimized)
        self.result, self.place, self.oracle, self.limit, self.progress = result, place, oracle, limit, progress
        self.notes: list[str] = []
        self.options = (options_of(self.optimized) if self.optimized.is_dir() else None) or Options()

    def run(self) -> Finding:
        feeds = self._feeds()
        if feeds is None:
            return self._close(Finding("unknown", reason="there are no inputs that both models answer"))
        if (wrong := self._wrong_folder()) is not None:
            return self._close(wrong)
        self.progress("bisect: optimizing again, pass by pass")
        found = stages(self.original, self.options)
        if self.result.same:
            return self._close(self._kernels(found[-1].model, feeds) or Finding(
                "none", reason="the answers are the same, and every kernel answers as its definition does"))
        self.progress("bisect: which pass")
        at = first_wrong(self.original, found, self.oracle, feeds)
        if at is not None:
            return self._close(self._pass(found, at, feeds))
        again = self.oracle.place("again.tilegraph")
        self.options.optimize(self.original).save(again)
        if not self.oracle.differs(self.original, again, feeds):
            return self._close(Finding(
                "folder", str(self.optimized), "this version makes another folder of the original, with the right "
                "answers: the given one is of another version, of other options, or was changed",
                switches=["tilegraph optimize, run again"]))
        finding = self._kernels(found[-1].model, feeds) or self._runtime(feeds, again) or Finding(
            "unknown", reason="no pass and no kernel answers otherwise by itself: errors within the bound of each add "
            "up to more than the bound of the whole")
        if not finding.switches:
            finding.switches = self._switches(list(PASS_OF.values()), feeds)
        if finding.model is None:
            self._reproduce(finding, self.original, again, feeds)
        return self._close(finding)

    # -- what was given -----------------------------------------------------------------------------------------
    def _feeds(self) -> Feeds | None:
        """The first sample that differs by itself, else the first of all."""
        if not self.result.same:
            for feeds in self.result.feeds:
                if self.oracle.differs(self.original, self.optimized, feeds):
                    return feeds
            self.notes.append("no sample differs by itself: the bounds of all samples together are tighter")
        return self.result.feeds[0] if self.result.feeds else None

    def _wrong_folder(self) -> Finding | None:
        if not self.optimized.is_dir() or not (self.optimized / MANIFEST_FILE).is_file():
            if self.optimized.is_file():
                self.notes.append("a single file does not say how it was made: the default options are assumed")
            return None
        again = ["tilegraph optimize, run again"]
        try:
            manifest = read_folder(self.optimized)
        except InputError as error:
            return Finding("folder", str(self.optimized), str(error), switches=again)
        if manifest.model_sha256 != sha256_file(self.original):
            return Finding("folder", str(self.optimized), f"it was made from another model than {self.original}: "
                           "their SHA-256 differ", switches=again)
        if options_of(self.optimized) is None:
            self.notes.append("the folder's report does not say how it was made: the default options are assumed")
        return None

    # -- passes -------------------------------------------------------------------------------------------------
    def _pass(self, found: list[Stage], at: int, feeds: Feeds) -> Finding:
        name = found[at].name
        if not name:
            finding = Finding("pass", "load", "the model as loaded differs from the original before any pass ran")
            self._reproduce(finding, self.original, self.oracle.save(found[at].model, "loaded"), feeds)
            return finding
        finding = Finding("pass", name, f"the model is right before the pass {name!r} and differs after it")
        finding.switches = self._switches([name], feeds)
        wrong = self.oracle.save(found[at].model, "wrong")
        self._reproduce(finding, self.original, wrong, feeds)
        self.progress(f"bisect: the smallest subgraph that {name} breaks")
        # The given model, but for what loading settles: its nodes have names, its functions are inlined.
        model = load(self.original, dims=self.options.dims or None)

        def faulty(piece: ir.Model, inputs: Feeds) -> bool:
            path = self.oracle.save(piece, "piece")
            try:
                last = [s for s in stages(path, self._plain(at, found)) if s.name == name]
            except Exception:  # a pass that fails on a piece is another fault than the one that is looked for
                return False
            return bool(last) and self.oracle.differs(path, self.oracle.save(last[-1].model, "piece-after"), inputs)

        piece = self._shrunk(model, feeds, faulty)
        if piece is not None:
            path = self.oracle.save(piece.model, "smallest")
            last = [s for s in stages(path, self._plain(at, found)) if s.name == name][-1]
            self._reproduce(finding, path, self.oracle.save(last.model, "smallest-after"), piece.feeds)
            finding.nodes, finding.value = piece.nodes, ", ".join(piece.outputs)
        return finding

    def _plain(self, at: int, found: list[Stage]) -> Options:
        """The options for a piece: dims are frozen in it already, and nothing runs after the pass that is at fault."""
        passes = list_passes(self.options.target)
        later = passes[passes.index(found[at].name) + 1:] if found[at].name in passes else []
        return Options(self.options.target, self.options.offload, self.options.disable).without(*later)

    # -- kernels ------------------------------------------------------------------------------------------------
    def _kernels(self, portable: ir.Model, feeds: Feeds) -> Finding | None:
        calls = composites(portable)
        if not calls:
            return None
        self.progress("bisect: which kernel")
        try:
            values = record(portable, feeds, self.oracle.threads, self.oracle.work)
        except RunFailure as failure:
            self.notes.append(f"the values between the kernels could not be had: {failure}")
            return None
        bad: list[str] = []
        if not self.result.same:
            try:
                bad = first_bad_outputs(portable, self.optimized, self.oracle, feeds)
            except InputError as error:
                self.notes.append(f"the values between the partitions could not be compared: {error}")
        # First the kernels of the partition whose result differs first.
        first = _behind(calls, bad[0]) if bad else []
        for wrong in wrong_kernels(portable, [*first, *calls], values, self.options, self.oracle, set()):
            return self._kernel(wrong, portable, bad, feeds)
        if first and (whole := check(first, portable, values, self.options, self.oracle)) is not None:
            finding = Finding("partition", bad[0], "each of its kernels is right by itself, together they are not: "
                              "the program or its buffers are at fault", nodes=whole.names, value=bad[0])
            self._reproduce(finding, whole.original, whole.candidate, whole.feeds)
            return finding
        return None

    def _kernel(self, wrong: Wrong, portable: ir.Model, bad: list[str], feeds: Feeds) -> Finding:
        call = next(n for n in composites(portable) if n.name == wrong.names[0])
        finding = Finding("kernel", " ".join(wrong.symbols) or call.op_type,
                          f"the kernel of {call.name!r} ({call.op_type}) differs from its definition",
                          value=bad[0] if bad else call.outputs[0].name or "")
        finding.switches = self._switches([PASS_OF[kind_of(call)]] if kind_of(call) in PASS_OF else [], feeds)
        self._reproduce(finding, wrong.original, wrong.candidate, wrong.feeds)
        self.progress(f"bisect: the smallest part of {call.name} that is compiled wrongly")
        body = wrong.piece.clone()
        InlinePass()(body)
        options = Options(self.options.target, "all", mcpu=self.options.mcpu)

        def faulty(piece: ir.Model, inputs: Feeds) -> bool:
            return self.oracle.differs_optimized(self.oracle.save(piece, "piece"), options, inputs)

        piece = self._shrunk(load(body), wrong.feeds, faulty)
        if piece is not None:
            path = self.oracle.save(piece.model, "smallest")
            folder = self.oracle.place("smallest.tilegraph")
            options.optimize(path).save(folder)
            self._reproduce(finding, path, folder, piece.feeds)
            finding.nodes = [f"{n.op_type} {n.name}" for n in piece.model.graph if n.name in set(piece.nodes)]
        return finding

    # -- what is left -------------------------------------------------------------------------------------------
    def _runtime(self, feeds: Feeds, again: Path) -> Finding | None:
        """Whether the answers are right once ONNX Runtime's own optimizations are off."""
        self.progress("bisect: ONNX Runtime's own optimizations")
        plain = self.oracle.compare(self.original, again, feeds, ort_optimizations=False)
        if not plain.same:
            return None
        bad = [o for o in self.oracle.compare(self.original, again, feeds).outputs if not o.same]
        too = any("take the original out" in note for o in bad for note in o.notes)
        return Finding(
            "onnxruntime", "graph optimizations", "the answers are right once ONNX Runtime's own optimizations are off"
            + ("; they take the original out of the bound too" if too else ""), value=bad[0].name if bad else "",
            switches=["the session option graph_optimization_level = ORT_DISABLE_ALL"])

    # -- shared -------------------------------------------------------------------------------------------------
    def _switches(self, passes: list[str], feeds: Feeds) -> list[str]:
        self.progress("bisect: which switch avoids it")
        return self.oracle.first_switch(self.original, self.options, feeds, passes)

    def _shrunk(self, model: ir.Model, feeds: Feeds, faulty: Callable[[ir.Model, Feeds], bool]) -> Piece | None:
        try:
            values: dict[str, Array] = record(model, feeds, self.oracle.threads, self.oracle.work)
        except RunFailure as failure:
            self.notes.append(f"no smaller subgraph: its values could not be had ({failure})")
            return None
        start = time.monotonic()
        shrinker = Shrinker(model, values, faulty, self.limit)
        suspects = [v.name or "" for v in model.graph.outputs]
        piece = shrinker.run(suspects)
        if piece is None:
            self.notes.append("no smaller subgraph was found that shows it")
        elif shrinker.time_is_up:
            self.notes.append(f"the search for a smaller subgraph stopped after {time.monotonic() - start:.0f} s")
        return piece

    def _reproduce(self, finding: Finding, model: Path, candidate: Path, feeds: Feeds) -> None:
        """Copies the files that show the fault into the result's folder, in the place of earlier ones."""
        for name in FILES:
            (self.place / name).unlink(missing_ok=True)
        shutil.rmtree(self.place / "candidate.tilegraph", ignore_errors=True)
        finding.model = self.place / "model.onnx"
        _copy_model(model, finding.model)
        if candidate.is_dir():
            finding.candidate = self.place / "candidate.tilegraph"
            shutil.copytree(candidate, finding.candidate)
        else:
            finding.candidate = self.place / "candidate.onnx"
            _copy_model(candidate, finding.candidate)
        finding.inputs = save_inputs(feeds, self.place / "inputs.npz")

    def _close(self, finding: Finding) -> Finding:
        finding.notes += self.notes
        return finding


def _copy_model(source: Path, target: Path) -> None:
    """With its data, under the new name."""
    save(read_model(source), target)


def _behind(calls: list[ir.Node], value: str) -> list[ir.Node]:
    """The composites connected to the one that makes `value` without leaving composites, in order."""
    start = next((n for n in calls if any(v.name == value for v in n.outputs)), None)
    if start is None:
        return []
    known, found, queue = set(calls), {start}, [start]
    while queue:
        node = queue.pop()
        near = [v.producer() for v in node.inputs if v is not None]
        near += [use.node for v in node.outputs for use in v.uses()]
        for other in near:
            if other is not None and other in known and other not in found:
                found.add(other)
                queue.append(other)
    return [n for n in calls if n in found]


def _prepared(folder: Path) -> Path:
    """An empty folder; UsageError if it holds what no bisection wrote."""
    ours = {*FILES, "candidate.tilegraph"}
    if folder.exists() and (not folder.is_dir() or any(p.name not in ours for p in folder.iterdir())):
        raise UsageError(f"--bisect {folder}: holds other files; name a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()
    return folder
