"""Random graphs, optimized with every legal region, against ONNX Runtime without optimizations.

    python -m tests.fuzz.fuzz [--seconds 300] [--start 0] [--offload all|auto]

Each graph runs in a child that does many, so that a crash is a finding too. What differs by the rules of `verify` is
made small and saved in tests/fuzz/found, where tests/fuzz/test_saved.py runs it from then on. Some graphs are also
written anew (other names, Identity nodes, constants that several nodes shared given to each) and must give the same
kernels.
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
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.fuzz.graphs import Graph

FOUND = Path(__file__).parent / "found"
# The error of one value tells little of how large ONNX Runtime's errors are: a few times its bound is chance in a
# random graph, and counted apart.
ROUNDING = 16.0
LIMIT_S = 120.0  # for one graph


def check(seed: int, offload: str, folder: Path) -> tuple[str, str]:
    """("kernel" or "ort", "") for the same answers; ("WRONG" or another word in capitals, why)."""
    from tests.conformance.sweep_worker import _close
    from tilegraph.compiler import optimize
    from tilegraph.spec.artifact import EP_NAME, MODEL_FILE
    from tilegraph.verify import verify
    from tilegraph.verify.run import ModelRun, RunFailure, open_runner

    graph = Graph(seed)
    if not graph.nodes:
        return "empty", ""
    model = graph.model()
    path = folder / f"{seed}.onnx"
    onnx.save(model, path)
    try:
        runner = open_runner(ModelRun(str(path), threads=1), isolate=False)
        names = [n for n, _ in runner.signature[1]]
        wanted = dict(zip(names, runner.run(graph.feeds), strict=True))
    except RunFailure:
        return "unrunnable", ""  # node by node it runs; ONNX Runtime's inference over the whole says no
    try:
        made = optimize(path, offload=offload)
        saved = made.save(folder / f"{seed}.tilegraph", force=True)
    except Exception as error:
        return "OPTIMIZE", f"{type(error).__name__}: {error}"[:300]
    try:
        served = open_runner(ModelRun(str(saved / MODEL_FILE), optimize=True, plugin=True, threads=1), isolate=False)
        found = dict(zip([n for n, _ in served.signature[1]], served.run(graph.feeds), strict=True))
    except RunFailure as error:
        return "RUN", str(error)
    if list(found) != names or not all(_close(n, wanted[n], found[n]) for n in names):
        judged = verify(path, saved, inputs=graph.feeds, threads=1, reference_limit=20.0)
        bad = [o for o in judged.outputs if not o.same]
        if bad or judged.problems:
            why = "; ".join(
                [
                    *judged.problems,
                    *(f"{o.name}: max_abs {o.max_abs:.3g} (bound {o.atol:.3g}), {'; '.join(o.notes)}" for o in bad),
                ]
            )[:500]
            rounding = all(o.max_abs <= ROUNDING * o.atol and "out of bounds" in " ".join(o.notes) for o in bad)
            return ("rounding" if rounding and not judged.problems else "WRONG"), why
    if seed % 5 == 0:
        other = optimize(rewritten(model, seed), offload=offload)
        if symbols(other) != symbols(made):
            return "OTHER_KERNELS", f"{len(symbols(made))} kernels, written anew {len(symbols(other))}"
    return ("kernel" if made.summary.engines.get(EP_NAME) else "ort"), ""


def symbols(made: Any) -> Counter[str]:
    return Counter(c.symbol for p in made.manifest.programs.values() for c in p.calls)


def rewritten(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same model with other names for all inner values and nodes, Identity nodes on some edges, and constants that
    several nodes read copied for each."""
    rng = np.random.default_rng(seed + 2)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    outside = {v.name for v in (*graph.input, *graph.output)}
    constants = {t.name: t for t in graph.initializer}
    captured = {i for n in graph.node for a in n.attribute for m in a.g.node for i in m.input}
    nodes: list[onnx.NodeProto] = []
    new: dict[str, str] = {}
    for index, node in enumerate(graph.node):
        for k, name in enumerate(node.input):
            if name in constants and name not in captured:
                twin = onnx.TensorProto()
                twin.CopyFrom(constants[name])
                twin.name = f"constant_{index}_{k}"
                graph.initializer.append(twin)
                node.input[k] = twin.name
            elif name and name not in constants:
                node.input[k] = new.get(name, name)
                if rng.random() < 0.15:
                    nodes.append(onnx.helper.make_node("Identity", [node.input[k]], [f"same_{index}_{k}"]))
                    node.input[k] = f"same_{index}_{k}"
        for k, name in enumerate(node.output):
            if name not in outside and name not in captured:
                new[name] = f"renamed_{index}_{k}"
                node.output[k] = new[name]
        node.name = f"other_{index}"
        nodes.append(node)
    kept = [t for t in graph.initializer if any(t.name in n.input for n in nodes) or t.name in captured]
    made = onnx.helper.make_graph(nodes, "anew", graph.input, graph.output, kept)
    return onnx.helper.make_model(made, opset_imports=copy.opset_import, ir_version=copy.ir_version)


def shrink(seed: int, offload: str, kind: str) -> str:
    """The name of the files in `found`: the smallest piece that differs, or where only the whole graph does, that."""
    from tilegraph.io import load
    from tilegraph.verify.bisect.cut import record, save_inputs
    from tilegraph.verify.bisect.oracle import Options, Oracle
    from tilegraph.verify.bisect.shrink import Shrinker

    graph = Graph(seed)
    name = f"{kind.lower()}-{offload}-{seed}"
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
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
        onnx.save(graph.model(), path)
        model = load(path)
        values = record(model, graph.feeds, 1, Path(work))
        piece = Shrinker(model, values, faulty, LIMIT_S).run([v.name or "" for v in model.graph.outputs])
        FOUND.mkdir(exist_ok=True)
        if piece is None:
            onnx.save(graph.model(), FOUND / f"{name}.onnx")
            save_inputs(graph.feeds, FOUND / f"{name}.npz")
        else:
            (FOUND / f"{name}.onnx").write_bytes(oracle.save(piece.model).read_bytes())
            save_inputs(piece.feeds, FOUND / f"{name}.npz")
    return name


def _child(seeds: list[int], offload: str, connection: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        for seed in seeds:
            try:
                connection.send((seed, *check(seed, offload, Path(folder))))
            except Exception as error:
                connection.send((seed, "CHECK", f"{type(error).__name__}: {error}"[:300]))
            for path in Path(folder).glob("*.onnx"):
                path.unlink()


def fuzz(seconds: float, start: int, offload: str, batch: int = 40) -> tuple[Counter[str], list[tuple[int, str, str]]]:
    """How many graphs ended how, and the findings."""
    counts: Counter[str] = Counter()
    findings: list[tuple[int, str, str]] = []
    context = multiprocessing.get_context("spawn")
    until, seed = time.monotonic() + seconds, start
    while time.monotonic() < until:
        here, there = context.Pipe(duplex=False)
        seeds = list(range(seed, seed + batch))
        child = context.Process(target=_child, args=(seeds, offload, there))
        child.start()
        there.close()
        for current in seeds:
            try:
                outcome = here.recv() if here.poll(LIMIT_S) else (current, "TIMEOUT", f"longer than {LIMIT_S:.0f} s")
            except EOFError:
                child.join()
                outcome = (current, "CRASH", f"exit code {child.exitcode}")
            seed = current + 1
            counts[outcome[1]] += 1
            if outcome[1].isupper():
                findings.append(outcome)
                print(f"seed {outcome[0]}: {outcome[1]}: {outcome[2]}", flush=True)
            if outcome[1] in ("CRASH", "TIMEOUT") or time.monotonic() > until:
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
    for seed, kind, _ in findings[:10]:
        if kind in ("WRONG", "RUN", "OPTIMIZE"):
            print(f"saved as tests/fuzz/found/{shrink(seed, given.offload, kind)}.onnx", flush=True)
    print(json.dumps({"graphs": sum(counts.values()), "start": given.start, **counts}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
