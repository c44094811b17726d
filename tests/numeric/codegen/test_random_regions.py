"""Random graphs through fusion and the kernel generator, compared with an evaluation in extended precision.

TILEGRAPH_EXAMPLES sets how many graphs are tried.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.numeric.codegen.graphs import Graph, graphs
from tests.numeric.codegen.reference import Array, check, evaluate, narrowed, shape_of, spread, widened
from tests.numeric.codegen.runner import Compiled, compile_lowered
from tilegraph.codegen.isa import Isa, host
from tilegraph.ops.dtypes import stored_name
from tilegraph.ops.lower import lower_region
from tilegraph.ops.prims import Decline
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion import RegionFusion
from tilegraph.rewrites.fusion.composite import DOMAIN

EXAMPLES = int(os.environ.get("TILEGRAPH_EXAMPLES", "40"))
# Shrinking compiles a kernel for each attempt: minutes.
PHASES = (Phase.generate, Phase.shrink) if os.environ.get("TILEGRAPH_SHRINK") else (Phase.generate,)
LEVELS = [Isa("x86-64-v3"), Isa("x86-64-v4"), replace(Isa("x86-64-v2"), vector_bits=32)]
RUNNABLE = [isa for isa in LEVELS if isa.base <= host().base]


def feeds_of(call: ir.Node, function: ir.Function, graph: Graph) -> dict[ir.Value, Array]:
    """What the call's operands hold in memory, for the inputs of its body."""
    feeds: dict[ir.Value, Array] = {}
    for outside, inside in zip(call.inputs, function.inputs, strict=True):
        assert outside is not None
        array = graph.values.get(outside.name or "")
        if array is None:
            assert outside.const_value is not None
            array = outside.const_value.numpy()
        feeds[inside] = narrowed(array, stored_name(outside.dtype))
    return feeds


def check_region(call: ir.Node, function: ir.Function, graph: Graph, isa: Isa, tasks: int, misaligned: bool) -> bool:
    """Compares one composite with its reference, at other sizes of its symbols too; False if it has no kernel."""
    lowered = lower_region(list(function), list(function.outputs), function.opset_imports)
    try:
        kernel = compile_lowered(lowered, isa)
    except Decline:
        return False
    feeds = feeds_of(call, function, graph)
    compare(call.name or "", kernel, function, feeds, graph.binding, tasks, misaligned)
    for size in (1, 19) if graph.binding else ():
        binding = {name: size + k for k, name in enumerate(sorted(graph.binding))}
        resized = {v: np.resize(a, shape_of(v, binding)) for v, a in feeds.items()}
        compare(f"{call.name} at {binding}", kernel, function, resized, binding, tasks, misaligned)
    return True


def compare(name: str, kernel: Compiled, function: ir.Function, feeds: dict[ir.Value, Array], binding: dict[str, int],
            tasks: int, misaligned: bool) -> None:
    nodes, outputs = list(function), list(function.outputs)
    width = max(a.dtype.itemsize for a in feeds.values())
    named = {v.name or "": a for v, a in feeds.items()}
    results = kernel.run(named, tasks, width if misaligned else 0)
    kernel.check_fences(named, tasks)
    truth = evaluate(nodes, {v: widened(a) for v, a in feeds.items()}, binding)
    deviations = spread(nodes, feeds, binding, truth)
    for k, ours in zip(kernel.kernel.outputs, results, strict=True):
        value = outputs[k]
        check(f"{name}.{k}", kernel.lowered.stored[k], ours, truth[value], deviations.get(value))


@settings(max_examples=EXAMPLES, deadline=None, database=None, print_blob=False, derandomize=EXAMPLES <= 100,
          phases=PHASES, report_multiple_bugs=False,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])
@given(graphs(), st.sampled_from(RUNNABLE), st.integers(1, 3), st.booleans())
def test_every_region_of_a_random_graph_computes_its_reference(graph: Graph, isa: Isa, tasks: int,
                                                               misaligned: bool) -> None:
    RegionFusion("all").run(graph.model, PassContext())
    for node in graph.model.graph:
        if node.domain == DOMAIN:
            check_region(node, graph.model.functions[node.op_identifier()], graph, isa, tasks, misaligned)


@settings(max_examples=max(EXAMPLES // 3, 1), deadline=None, database=None, derandomize=EXAMPLES <= 100, phases=PHASES,
          suppress_health_check=list(HealthCheck))
@given(graphs(), st.sampled_from(RUNNABLE), st.integers(1, 3))
def test_nan_goes_where_the_definitions_send_it(graph: Graph, isa: Isa, tasks: int) -> None:
    """One operand in 25 is NaN; no other may become NaN, and none may vanish."""
    RegionFusion("all").run(graph.model, PassContext())
    for node in graph.model.graph:
        if node.domain != DOMAIN:
            continue
        function = graph.model.functions[node.op_identifier()]
        nodes, outputs = list(function), list(function.outputs)
        if any(n.op_type == "Cast" and not _floating(n.outputs[0]) for n in nodes):
            continue  # an integer of NaN is whatever the processor makes of it
        kernel = compile_lowered(lower_region(nodes, outputs, function.opset_imports), isa)
        rng = np.random.default_rng(1)
        feeds = {v: np.where(rng.random(a.shape) < 0.04, np.nan, a).astype(a.dtype) if _floating(v) else a
                 for v, a in feeds_of(node, function, graph).items()}
        results = kernel.run({v.name or "": a for v, a in feeds.items()}, tasks)
        truth = evaluate(nodes, feeds, graph.binding)
        for k, ours in zip(kernel.kernel.outputs, results, strict=True):
            theirs = truth[outputs[k]]
            if _floating(outputs[k]):
                assert np.array_equal(np.isnan(ours.astype(np.float64)), np.isnan(theirs)), f"{node.name}.{k}"
            else:
                assert np.array_equal(ours, theirs), f"{node.name}.{k}"


def _floating(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def test_the_check_sees_an_error_of_a_few_units() -> None:
    truth = np.linspace(1, 2, 64).astype(np.longdouble)
    deviation = truth * 2.0**-23
    ours = truth.astype(np.float32)
    check("y", "float", ours, truth, deviation)
    ours[7] *= np.float32(1 + 12 * 2.0**-23)
    with pytest.raises(AssertionError, match=r"1 of 64 are off, first at \(7,\)"):
        check("y", "float", ours, truth, deviation)
