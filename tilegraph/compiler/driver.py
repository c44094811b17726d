"""The stage driver: load, normalise, rewrite, partition, generate code, emit. A readable list of stages."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from tilegraph import __version__, targets
from tilegraph.codegen.cache import KernelCache
from tilegraph.codegen.kernels import KernelStore
from tilegraph.codegen.library import link
from tilegraph.codegen.version import TVM_VERSION
from tilegraph.compiler.packing import Packer
from tilegraph.compiler.program import build
from tilegraph.compiler.result import OptimizedModel, Source, Summary
from tilegraph.compiler.tune import Measure, Tuned, tune
from tilegraph.diagnostics import Diagnostics
from tilegraph.emit import EmitPartition, emit
from tilegraph.errors import UsageError
from tilegraph.graph import all_graphs
from tilegraph.io import load
from tilegraph.ops.prims import Decline
from tilegraph.partition import group
from tilegraph.partition.group import outputs_of
from tilegraph.passes import Instrument, PassContext, Pipeline
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.spec.artifact import EP_NAME, Library, Manifest, library_file
from tilegraph.spec.digest import sha256_file
from tilegraph.spec.given import GivenDims
from tilegraph.spec.schedule import Schedule
from tilegraph.targets.base import FLOAT32

OFFLOADS = ("auto", "all", "none")
RUNTIME = "onnxruntime"
TUNE_BUDGET_S = 60.0


def list_passes(target: str = "cpu") -> list[str]:
    """The names that `disable` accepts, in order."""
    return [p.name for p in targets.get(target).passes(targets.CompilerOptions())]


def optimize(model: Source, target: str = "cpu", *, dims: GivenDims | None = None, offload: str = "auto",
             disable: Collection[str] = (), mcpu: str | None = None, precision: str = FLOAT32,
             weights: str = FLOAT32, fast_winograd: bool = False, trust_hidden: bool = False,
             dump: Path | None = None,
             cache_dir: Path | None = None,
             progress: Callable[[str], None] | None = None, dry_run: bool = False, measure: Measure | None = None,
             budget: float = TUNE_BUDGET_S, sample: Mapping[str, Any] | None = None,
             schedules: Mapping[str, Schedule] | None = None) -> OptimizedModel:
    """Optimizes `model` (a path, its bytes, a ModelProto or an ir.Model, which is left alone) for `target`.

    dims: sizes of symbolic dims by name, or the dims that one follows from ({"total": "past+seq"}).
    offload: "auto" asks the cost model, "all" takes every legal region, "none" only normalises. disable: passes to
    skip. mcpu: compile for this CPU instead of the host's. precision: "bf16" rounds the operands of compiled matrix
    products to bfloat16 and sums in float32. weights: "int8" or "int4" rounds their
    matrices to integers in blocks. fast_winograd: 3x3 convolutions by F(4x4, 3x3), about five times the rounding error.
    trust_hidden: keys that masks hide, and their values, are finite: with few queries they are not read. dump: folder
    for the model after each pass and the kernels' text. dry_run: decide, compile nothing. progress: told each stage's
    name. measure: times composites, for about `budget` seconds: the
    fastest schedule is taken, and those that ONNX Runtime runs faster stay with it. sample: arrays by input name, for
    which the report says how dense masks are; they decide nothing. schedules: those of kernels, by the names of
    composites, where nothing is measured.

    Raises `InputError` (and its kinds) for what the user can mend.
    """
    if offload not in OFFLOADS:
        raise UsageError(f"--offload {offload}: choose one of {', '.join(OFFLOADS)}")
    if measure is not None and (mcpu is not None or dry_run):
        raise UsageError("--tune measures kernels on this machine: leave --mcpu and --dry-run out")
    run = _Run(progress)
    chosen = targets.get(target)
    isa = chosen.isa(mcpu)
    with run.stage("load"):
        graph = load(model, dims=dims)
    summary = Summary(_name(model), target, _count(graph), options={
        "offload": offload, "disable": sorted(disable), "dims": dict(dims or {}), "mcpu": mcpu, "precision": precision,
        "weights": weights, "fast_winograd": fast_winograd, "trust_hidden": trust_hidden, "tune": measure is not None})
    context = PassContext(run.diagnostics, sample=sample)
    passes = chosen.passes(targets.CompilerOptions(offload, isa, precision, weights, fast_winograd,
                                                   trust_hidden))
    pipeline = Pipeline(passes, disabled=disable, instruments=_instruments(dump))
    with run.stage("passes"):
        pipeline.run(graph, context)
    summary.regions = len(run.diagnostics.of("fusion", taken=True))
    summary.attentions = [
        {"name": d.subject, "taken": d.taken, "kind": d.data.get("kind", ""), "density": d.data.get("density"),
         "inputs": d.data.get("inputs", []), "measured": d.data.get("measured"), "reason": d.reason}
        for d in run.diagnostics.of("attention")]
    summary.layout_conversions = [
        {"value": d.subject, "bytes": d.data["bytes"], "reason": d.reason}
        for d in run.diagnostics.of("layout", taken=True) if d.op == "conversion"]
    summary.weights = [
        {"name": d.subject, "reason": d.reason, "bits": d.data["bits"], "block": d.data["block"],
         "relative_error": d.data["relative_error"], "max_error": d.data["max_error"]}
        for d in run.diagnostics.of("weights", taken=True)]
    cache = KernelCache(cache_dir, diagnostics=run.diagnostics)
    tuned = Tuned(schedules=schedules or {})
    if measure is not None:
        with run.stage("tune"), tempfile.TemporaryDirectory(prefix="tilegraph-tune-") as place:
            tuned = tune(list(all_graphs(graph.graph)), graph, measure,
                         partial(_piece, target, cache_dir, Path(place)), isa, cache, budget, run.diagnostics)
    slow, summary.tuned = tuned.slow, list(tuned.measured)
    store = KernelStore(isa, cache, _dumper(dump), tuned.schedules)
    with run.stage("partition"):
        groups = [(g, members) for g in all_graphs(graph.graph) for members in group(g, DOMAIN, slow)]
    summary.partitions = len(groups)
    manifest, library = None, b""
    if not dry_run:
        rewritten = graph.clone()
        with run.stage("codegen"):
            parts = _programs(graph, groups, store, run.diagnostics)
        summary.partitions = len(parts)
        with run.stage("link"):
            linked, library = _link(store, target)
        with run.stage("emit"):
            emit(graph, parts, run.diagnostics)
        manifest = Manifest(target, linked, {p.name: p.program for p in parts}, _digest(model), _tools(), {})
    else:
        rewritten = graph
    summary.nodes_after = _count(graph)
    summary.engines = _engines(graph, slow)
    summary.refusals = [{"stage": d.stage, "node": d.subject, "op": d.op, "reason": d.reason}
                        for d in run.diagnostics.refusals()]
    summary.seconds = dict(run.diagnostics.seconds)
    return OptimizedModel(model, graph, summary, run.diagnostics, manifest, library, lambda: rewritten)


def _piece(target: str, cache_dir: Path | None, place: Path, model: ir.Model, schedules: Mapping[str, Schedule],
           number: int) -> Path:
    """A folder of a model whose composites are made already: only sizes are inferred again."""
    others = [name for name in list_passes(target) if name != "shapes"]
    made = optimize(model, target, offload="none", disable=others, cache_dir=cache_dir, schedules=schedules)
    if made.manifest is None or not made.manifest.programs:
        raise RuntimeError("no kernel can be made of it alone")
    return made.save(place / f"piece{number}.tilegraph", force=True)


def _instruments(dump: Path | None) -> list[Instrument]:
    if dump is None:
        return []
    from tilegraph.passes.instruments import DumpInstrument

    return [DumpInstrument(dump)]


class _Run:
    """Times stages and tells the progress callback about them."""

    def __init__(self, progress: Callable[[str], None] | None) -> None:
        self.progress = progress
        self.diagnostics = Diagnostics()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self.progress is not None:
            self.progress(name)
        start = time.perf_counter()
        yield
        self.diagnostics.seconds[name] = time.perf_counter() - start


def _programs(model: ir.Model, groups: list[tuple[ir.Graph, tuple[ir.Node, ...]]], store: KernelStore,
              diagnostics: Diagnostics) -> list[EmitPartition]:
    parts: list[EmitPartition] = []
    packer = Packer()
    for graph, members in groups:
        name = f"p{len(parts)}"
        try:
            built = build(members, outputs_of(members, graph), model.functions, store, packer)
        except Decline as reason:
            for node in members:
                diagnostics.refused("codegen", node.name or "", reason.reason, op=node.op_type)
            continue
        diagnostics.took("partition", name, f"{len(members)} kernels", nodes=[n.name for n in members])
        parts.append(EmitPartition(name, members, built.inputs, built.outputs, built.program))
    return parts


def _link(store: KernelStore, target: str) -> tuple[Library, bytes]:
    """The linked library and what the manifest says of it; nothing at all where nothing was compiled."""
    base = store.isa.base
    if not store.objects:
        return Library("", "", 0, base), b""
    with tempfile.TemporaryDirectory(prefix="tilegraph-") as folder:
        path = Path(folder) / "kernels.so"
        info = link(store.objects, path)
        return Library(library_file(target), info.sha256, info.bytes, base, store.features), path.read_bytes()


def _dumper(folder: Path | None) -> Callable[[str, str], None] | None:
    if folder is None:
        return None

    def write(symbol: str, text: str) -> None:
        (folder / f"{symbol}.py").write_text(text)

    return write


def _count(model: ir.Model) -> int:
    return sum(1 for graph in all_graphs(model.graph) for _ in graph)


def _engines(model: ir.Model, slow: Set[ir.Node]) -> dict[str, int]:
    counts = Counter(EP_NAME if n.op_type == "EPContext" or (n.domain == DOMAIN and n not in slow) else RUNTIME
                     for graph in all_graphs(model.graph) for n in graph)
    return dict(sorted(counts.items()))


def _name(model: Source) -> str:
    if isinstance(model, (str, Path)):
        return str(model)
    return "<bytes>" if isinstance(model, bytes) else str(getattr(model.graph, "name", "") or "<model>")


def _digest(model: Source) -> str:
    if isinstance(model, (str, Path)):
        return sha256_file(Path(model))
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def _tools() -> dict[str, str]:
    return {"tilegraph": __version__, "tvm": TVM_VERSION, "onnx": onnx.__version__, "onnx_ir": ir.__version__}
