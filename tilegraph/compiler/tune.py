"""`--tune`: composites are timed with the schedules that their generators could choose, and in ONNX Runtime.

The fastest schedule becomes the kernel's, and composites that lose with it stay with ONNX Runtime. Who measures is
given by a layer above, which may import onnxruntime. Results are kept in the kernel cache, by the composite's content,
the generators' version, and the machine with its versions. What the budget does not reach is left to generators and
cost model, so that a folder depends on what was measured and on nothing else.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir

from tilegraph.codegen.cache import KernelCache, kernel_key
from tilegraph.codegen.isa import Isa
from tilegraph.codegen.version import GENERATOR, TVM_VERSION
from tilegraph.compiler.program import lowered_of
from tilegraph.diagnostics import Diagnostics
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.spec.schedule import DEFAULT, Schedule

STAGE = "tune"
LOSES = 1.05  # times ONNX Runtime's time: less is noise
GAINS = 0.97  # of the default schedule's time: more is noise
# Convolutions live in trunks of blocked layout; one alone is timed with conversions that it does not have there, which
# does not matter between two schedules.
_APART = ("Conv", "Pool", "Join")


class Measure(Protocol):
    """Times a model of one composite. `machine` names what the times depend on beside the composite."""

    machine: str

    def __call__(self, original: ir.Model, ours: Sequence[Path]) -> tuple[Sequence[float], float]:
        """Least seconds of one run: of each of the folders `ours`, and of `original` in ONNX Runtime. `RuntimeError`
        with the reason where that cannot be measured."""


Compiled = Callable[[ir.Model, Mapping[str, Schedule], int], Path]


@dataclass(frozen=True)
class Tuned:
    """`slow`: the calls that stay with ONNX Runtime. `schedules`: by the names of functions. `measured`: what the
    report says of each composite."""

    slow: frozenset[ir.Node] = frozenset()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    measured: Sequence[Mapping[str, Any]] = ()


def tune(graphs: Sequence[ir.Graph], functions: ir.Model, measure: Measure, compiled: Compiled, isa: Isa,
         cache: KernelCache, budget: float, diagnostics: Diagnostics) -> Tuned:
    """Chooses for the composites in `graphs`, for at most about `budget` seconds of measuring.

    `compiled` makes a folder, with a number of its own, of a model whose composites are kernels with those schedules.
    Composites of many calls are measured first.
    """
    calls = [n for g in graphs for n in g if n.domain == DOMAIN]
    counts = Counter(n.op_type for n in calls)
    first = {n.op_type: n for n in reversed(calls)}
    slow: set[str] = set()
    schedules: dict[str, Schedule] = {}
    measured: list[Mapping[str, Any]] = []
    end = time.perf_counter() + budget
    for name, count in counts.most_common():
        apart = name.startswith(_APART)
        others = _candidates(functions.functions[first[name].op_identifier()], isa)
        if apart and not others:
            continue  # nothing to choose between
        # The candidates are no part of the key: they follow from the generators' version.
        key = kernel_key(f"{STAGE}\n{name}", generator=GENERATOR, tvm=TVM_VERSION, isa=measure.machine)
        kept = cache.get(key)
        if kept is None and time.perf_counter() >= end:
            diagnostics.refused(STAGE, name, "not measured, so generators and cost model decided: --tune-budget is "
                                             "spent", op=name)
            continue
        try:
            times, runtime = json.loads(kept) if kept else _measured(first[name], functions, others, measure, compiled)
        except RuntimeError as problem:
            diagnostics.refused(STAGE, name, f"not measured, so generators and cost model decided: {problem}", op=name)
            continue
        cache.put(key, json.dumps([times, runtime]).encode())
        best = _best([DEFAULT, *others], times)
        if best != DEFAULT:
            schedules[name] = best
        data: dict[str, Any] = {
            "calls": count, "schedule": best.to_json(), "kernel_s": times[str(best)], "default_s": times[""],
            "candidates_s": {text: seconds for text, seconds in times.items() if text},
            "runtime_s": None if apart else runtime, "kept": kept is not None}
        measured.append({"composite": name, **data})
        said = _said(best, times, None if apart else runtime) + (", kept from before" if kept else "")
        if not apart and times[str(best)] > LOSES * runtime:
            slow.add(name)
            diagnostics.refused(STAGE, name, said, op=name, **data)
        else:
            diagnostics.took(STAGE, name, said, op=name, **data)
    return Tuned(frozenset(n for n in calls if n.op_type in slow), schedules, measured)


def _candidates(function: ir.Function, isa: Isa) -> list[Schedule]:
    # Imports TVM, which takes a second: only where something is tuned.
    from tilegraph.codegen.schedules import candidates

    try:
        return candidates(*lowered_of(function), isa)
    except Decline:  # whoever compiles it says so
        return []


def _best(schedules: Sequence[Schedule], times: Mapping[str, float]) -> Schedule:
    """The fastest, but the default one unless another gains more than noise."""
    best = min((s for s in schedules if str(s) in times), key=lambda s: times[str(s)])
    return best if times[str(best)] < GAINS * times[""] else DEFAULT


def _said(best: Schedule, times: Mapping[str, float], runtime: float | None) -> str:
    said = f"measured {times[str(best)] * 1e6:.1f} µs"
    if best != DEFAULT:
        said += f" with {best} ({times[''] * 1e6:.1f} without)"
    if runtime is not None:
        said += f" against {runtime * 1e6:.1f} µs in ONNX Runtime"
    others = len(times) - 1 - (best != DEFAULT)
    return said + (f"; {others} other schedule{'s' if others > 1 else ''} timed" if others else "")


def _measured(call: ir.Node, model: ir.Model, others: Sequence[Schedule], measure: Measure, compiled: Compiled) \
        -> tuple[dict[str, float], float]:
    """Seconds by schedule as text ("": the default), and of ONNX Runtime. A schedule with which there is no kernel (its
    scratch is too large, say) is left out."""
    piece = piece_of(call, model)
    folders = {"": compiled(piece, {}, 0)}
    for k, schedule in enumerate(others, 1):
        try:
            folders[str(schedule)] = compiled(piece, {call.op_type: schedule}, k)
        except RuntimeError:
            continue
    seconds, runtime = measure(piece, list(folders.values()))
    times = dict(zip(folders, seconds, strict=True))
    # The least of several noisy times is low by chance, so that the winner has to win again.
    while (best := _best([DEFAULT, *others], times)) != DEFAULT:
        (usual, again), _ = measure(piece, [folders[""], folders[str(best)]])
        if again < GAINS * usual:
            break
        times[str(best)] = times[""] * again / usual
    return times, runtime


def piece_of(call: ir.Node, model: ir.Model) -> ir.Model:
    """A model of `call` alone: what it reads are initializers where they are constant, inputs otherwise."""
    twins: dict[ir.Value, ir.Value] = {}
    for k, value in enumerate(v for v in call.inputs if v is not None):
        twins.setdefault(value, ir.Value(name=f"in{k}", shape=value.shape, type=value.type,
                                         const_value=None if value.is_graph_input() else value.const_value))
    node = ir.Node(call.domain, call.op_type, [None if v is None else twins[v] for v in call.inputs],
                   num_outputs=len(call.outputs), name=call.op_type)
    for k, (old, new) in enumerate(zip(call.outputs, node.outputs, strict=True)):
        new.name, new.shape, new.type = f"out{k}", old.shape, old.type
    constants = [v for v in twins.values() if v.const_value is not None]
    graph = ir.Graph([v for v in twins.values() if v.const_value is None], node.outputs, nodes=[node],
                     initializers=constants, opset_imports=dict(model.opset_imports), name="piece")
    function = model.functions[call.op_identifier()]
    return ir.Model(graph, ir_version=model.ir_version, functions=[function]).clone()
