"""What the pass decides on graphs: with estimates as they are, with offload all and none, and what it reports."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.unit.conv.test_units import W, weights
from tests.unit.fusion.parse import model
from tilegraph.cost import conv as cost
from tilegraph.passes import PassContext
from tilegraph.rewrites.layout import plan
from tilegraph.rewrites.layout.plan import LayoutPlanning
from tilegraph.rewrites.normalise import NORMALISE

TRUNK = f"""(float[1,3,32,32] x) => (float[1,16] y) {{ {weights('k', 16, 3, 3, 3)} {W} a = Conv(x, k) b = Relu(a)
    c = Conv<pads = [1,1,1,1]>(b, w) s = Sigmoid(c) d = Mul(c, s) e = Add(d, b) p = MaxPool<kernel_shape = [2,2]>(e)
    g = GlobalAveragePool(p) y = Flatten(g) }}"""


def planned(text: str, offload: str = "all", lanes: int = 16) -> tuple[ir.Model, PassContext, bool]:
    graph, context = model(text), PassContext()
    for step in NORMALISE:
        step.run(graph, context)
    return graph, context, LayoutPlanning(offload, lanes).run(graph, context).modified


def kinds(graph: ir.Model) -> list[str]:
    return [n.op_type.split("_")[0] for n in graph.graph if n.op_type != "Constant"]


def test_a_trunk_becomes_composites_with_one_conversion_at_its_end() -> None:
    graph, context, modified = planned(TRUNK)
    assert modified
    assert kinds(graph)[:4] == ["Conv", "Conv", "Pool", "Pool"]
    assert not {"Relu", "MaxPool", "GlobalAveragePool", "Sigmoid"} & set(kinds(graph))
    bodies = [[n.op_type for n in f] for name, f in graph.functions.items() if name[1].startswith("Conv")]
    assert sum("Conv" in b for b in bodies) == 2
    assert any({"Sigmoid", "Mul", "Add"} <= set(b) for b in bodies)
    conversions = [d for d in context.diagnostics.of("layout") if d.op == "conversion" and d.taken]
    assert [(d.subject, d.data["into_blocks"], d.data["bytes"]) for d in conversions] == [("g", False, 64)]
    assert conversions[0].data["readers"] == {"Flatten": 1}
    assert conversions[0].reason == "out of blocks of 16 channels: Flatten: Flatten has no blocked form"


def test_each_conversion_says_what_is_plain_on_the_other_side() -> None:
    v = weights("v", 16, 16, 1, 1)
    _, context, _ = planned(f"(float[1,16,8,8] x) => (float[1,16,8,8] a, float[1,16,8,8] y) {{ {v} a = Conv(x, v) "
                            "s = Softmax<axis = 1>(a) y = Conv(s, v) }")
    reasons = {d.subject: d.reason.partition(": ")[2] for d in context.diagnostics.of("layout")
               if d.op == "conversion" and d.taken}
    assert reasons == {"x": "it is a graph input", "s": "Softmax: Softmax has no blocked form",
                       "a": "it is a graph output; Softmax: Softmax has no blocked form", "y": "it is a graph output"}


def test_values_inside_are_blocked_tensors() -> None:
    graph, _, _ = planned(TRUNK, lanes=8)
    calls = [n for n in graph.graph if n.op_type.startswith(("Conv_", "Pool_"))]
    assert [list(n.outputs[0].shape or ()) for n in calls] == [
        [1, 2, 30, 30, 8], [1, 2, 30, 30, 8], [1, 2, 29, 29, 8], [1, 2, 1, 1, 8]]


def test_offload_none_and_graphs_without_windows_are_left_alone() -> None:
    assert not planned(TRUNK, "none")[2]
    graph, _, modified = planned("(float[1,16,8,8] x) => (float[1,16,8,8] y) { y = Relu(x) }")
    assert not modified
    assert kinds(graph) == ["Relu"]


def test_what_the_estimates_say_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "kernel_us", lambda work: 2 * cost.runtime_us(work) + 100)
    graph, context, modified = planned(TRUNK, "auto")
    assert not modified
    assert "Conv" in kinds(graph)
    reasons = {d.op: d.reason for d in context.diagnostics.of("layout", taken=False)}
    assert "stays in plain layout" in reasons["Conv"]
    monkeypatch.setattr(cost, "kernel_us", lambda work: 0.0)
    assert planned(TRUNK, "auto")[2]


def test_a_gain_inside_the_estimates_error_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "kernel_us", lambda work: 0.0)
    monkeypatch.setattr(plan, "_MIN_RATIO", 1e6)
    graph, _, modified = planned(TRUNK, "auto")
    assert not modified
    assert "Conv" in kinds(graph)


def test_a_lone_convolution_does_not_pay_for_two_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "kernel_us", lambda work: 0.9 * cost.runtime_us(work))
    lone = f"(float[1,16,64,64] x) => (float[1,16,62,62] y) {{ {W} a = Softmax<axis = 3>(x) y = Conv(a, w) }}"
    graph, context, modified = planned(lone, "auto")
    assert not modified
    assert any("conversions beside that" in d.reason for d in context.diagnostics.of("layout", taken=False))
    chain = " ".join(f"v{k} = Conv<pads = [1,1,1,1]>(v{k - 1}, w)" for k in range(1, 12))
    deep = (f"(float[1,16,64,64] x) => (float[1,16,64,64] y) {{ {W} v0 = Softmax<axis = 3>(x) {chain} "
            "y = Softmax<axis = 3>(v11) }")
    graph, context, modified = planned(deep, "auto")
    assert modified
    assert kinds(graph).count("Conv") == 11
    assert sorted(d.subject for d in context.diagnostics.of("layout") if d.op == "conversion" and d.taken) == [
        "v0", "v11"]


def test_running_again_changes_nothing() -> None:
    graph, context, _ = planned(TRUNK)
    assert not LayoutPlanning("all").run(graph, context).modified
