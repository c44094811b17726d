"""`--tune`: composites are timed as kernels and in ONNX Runtime, and those that lose stay with ONNX Runtime.

Who measures is given by a layer above, which may import onnxruntime. Results are kept in the kernel cache, by the
composite's content, the generators' version, and the machine with its versions.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import onnx_ir as ir

from tilegraph.codegen.cache import KernelCache, kernel_key
from tilegraph.codegen.version import GENERATOR, TVM_VERSION
from tilegraph.diagnostics import Diagnostics
from tilegraph.rewrites.fusion.composite import DOMAIN

STAGE = "tune"
LOSES = 1.05  # times ONNX Runtime's time: less is noise
# Convolutions live in trunks of blocked layout; one alone would be timed with conversions that it does not have there.
_APART = ("Conv", "Pool")


class Measure(Protocol):
    """Times a model of one composite. `machine` names what the times depend on beside the composite."""

    machine: str

    def __call__(self, original: ir.Model, ours: Path) -> tuple[float, float]:
        """Least seconds of one run: of the folder `ours`, and of `original` in ONNX Runtime. `RuntimeError` with the
        reason where that cannot be measured."""


def tune(graphs: Sequence[ir.Graph], functions: ir.Model, measure: Measure, compiled: Callable[[ir.Model], Path],
         cache: KernelCache, budget: float, diagnostics: Diagnostics) -> frozenset[ir.Node]:
    """The composites in `graphs` that stay with ONNX Runtime, for at most about `budget` seconds of measuring.

    `compiled` makes a folder of a model whose composites are kernels. Those of many calls are measured first.
    """
    calls = [n for g in graphs for n in g if n.domain == DOMAIN and not n.op_type.startswith(_APART)]
    counts = Counter(n.op_type for n in calls)
    first = {n.op_type: n for n in reversed(calls)}
    slow: set[str] = set()
    end = time.perf_counter() + budget
    for name, count in counts.most_common():
        key = kernel_key(f"{STAGE}\n{name}", generator=GENERATOR, tvm=TVM_VERSION, isa=measure.machine)
        kept = cache.get(key)
        if kept is None and time.perf_counter() >= end:
            diagnostics.refused(STAGE, name, "not measured, so the cost model decided: --tune-budget is spent", op=name)
            continue
        try:
            ours, runtime = json.loads(kept) if kept else _measured(first[name], functions, measure, compiled)
        except RuntimeError as problem:
            diagnostics.refused(STAGE, name, f"not measured, so the cost model decided: {problem}", op=name)
            continue
        cache.put(key, json.dumps([ours, runtime]).encode())
        said = f"measured {ours * 1e6:.1f} µs against {runtime * 1e6:.1f} µs in ONNX Runtime" + \
            (", kept from before" if kept else "")
        data = {"kernel_s": ours, "runtime_s": runtime, "calls": count, "kept": kept is not None}
        if ours > LOSES * runtime:
            slow.add(name)
            diagnostics.refused(STAGE, name, said, op=name, **data)
        else:
            diagnostics.took(STAGE, name, said, op=name, **data)
    return frozenset(n for n in calls if n.op_type in slow)


def _measured(call: ir.Node, model: ir.Model, measure: Measure, compiled: Callable[[ir.Model], Path]) \
        -> tuple[float, float]:
    piece = piece_of(call, model)
    return measure(piece, compiled(piece))


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
