"""A structure is examined once; what is told about another set of it carries that set's values and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
from parse import model

from tilegraph.ops.attention import lower_attention, plan_attention
from tilegraph.ops.gemm import lower_gemm, plan_gemm
from tilegraph.ops.prims import Decline
from tilegraph.ops.region import plan
from tilegraph.rewrites.fusion import verdicts
from tilegraph.rewrites.fusion.verdicts import Verdicts

LAYERS = """(float[B, 8] x, float[8] u, float[8] w) => (float[B, 8] y, float[B, 8] z) {
    a = Add(x, u)  y = Mul(a, a)  b = Add(x, w)  z = Mul(b, b) }"""


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = verdicts.lower_region

    def lower(nodes: list[ir.Node], *rest: object) -> object:
        calls.append(len(nodes))
        return real(nodes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(verdicts, "lower_region", lower)
    return calls


def test_equal_layers_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    graph = model(LAYERS).graph
    nodes, (y, z) = list(graph), graph.outputs
    asked = Verdicts({"": 20}, plan, verdicts.lower_region)
    first, space = asked.ask(nodes[:2], [y])
    second, again = asked.ask(nodes[2:], [z])
    assert calls == [2]
    assert again is space
    assert [v.name for _, v in first.inputs] == ["x", "u"]
    assert [v.name for _, v in second.inputs] == ["x", "w"]


@pytest.mark.parametrize("other", [
    LAYERS.replace("z = Mul(b, b)", "z = Mul(b, x)"),  # wiring
    LAYERS.replace("b = Add(x, w)", "b = Sub(x, w)"),  # operator
    LAYERS.replace("float[8] w", "float[1, 8] w"),  # shape
])
def test_other_structures_are_lowered_too(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    calls = counted(monkeypatch)
    graph = model(other).graph
    nodes, (y, z) = list(graph), graph.outputs
    asked = Verdicts({"": 20}, plan, verdicts.lower_region)
    asked.ask(nodes[:2], [y])
    asked.ask(nodes[2:], [z])
    assert calls == [2, 2]


@pytest.mark.parametrize(("planner", "lower", "text"), [
    (plan_gemm, lower_gemm, """(float[B, 8] x, float[8, 16] u, float[8, 16] w) => (float[B, 16] y, float[B, 16] z) {
        a = MatMul(x, u) y = Relu(a) b = MatMul(x, w) z = Relu(b) }"""),
    (plan_attention, lower_attention, """(float[2, 8, 4] x, float[2, 4, 8] u, float[2, 8, 4] v, float[2, 4, 8] w)
        => (float[2, 8, 4] y, float[2, 8, 4] z) {
        a = MatMul(x, u) s = Softmax<axis=-1>(a) y = MatMul(s, v)
        b = MatMul(x, w) t = Softmax<axis=-1>(b) z = MatMul(t, v) }"""),
], ids=["products", "attentions"])
def test_other_lowerings(planner: Callable[[Any], Any], lower: Callable[..., Any], text: str) -> None:
    """Lowered once; each is told about its own values."""
    made = model(text)
    nodes, (y, z) = list(made.graph), made.graph.outputs
    half, calls = len(nodes) // 2, []

    def counting(*rest: Any) -> Any:
        calls.append(1)
        return lower(*rest)

    asked = Verdicts({"": 20}, planner, counting)
    first, space = asked.ask(nodes[:half], [y])
    second, again = asked.ask(nodes[half:], [z])
    assert (len(calls), again is space) == (1, True)
    read = [{v.name for _, v in found.inputs} for found in (first, second)]
    assert ("u" in read[0], "w" in read[0], "u" in read[1], "w" in read[1]) == (True, False, False, True)


def test_outputs_are_part_of_the_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    graph = model(LAYERS).graph
    nodes = list(graph)
    asked = Verdicts({"": 20}, plan, verdicts.lower_region)
    asked.ask(nodes[:2], [graph.outputs[0]])
    asked.ask(nodes[:2], [nodes[0].outputs[0], graph.outputs[0]])
    assert calls == [2, 2]


@pytest.mark.parametrize("text", [
    """(float[B, 8] x) => (float[B, 4] y, float[B, 4] z)
        <int64[1] s = {0}, int64[1] t = {4}, int64[1] e = {4}, int64[1] f = {8}, int64[1] axis = {1}>
        { y = Slice(x, s, e, axis)  z = Slice(x, t, f, axis) }""",
    "(float[B, 8] x) => (float[B, 8] y, float[B, 8] z) <float s = {2}, float t = {3}> { y = Mul(x, s)  z = Mul(x, t) }",
    """(float[1, 8] x) => (float[1, 16] y, float[1, 16] z) <float[2] s = {1, 2}, float[2] t = {1, 2.1}>
        { y = Resize<mode="linear">(x, , s)  z = Resize<mode="linear">(x, , t) }""",
], ids=["places", "a number", "scales"])
def test_constants_are_part_of_the_structure(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    calls = counted(monkeypatch)
    made = model(text)
    nodes, (y, z) = list(made.graph), made.graph.outputs
    asked = Verdicts({"": 20}, plan, verdicts.lower_region)
    asked.ask(nodes[:1], [y])
    asked.ask(nodes[1:], [z])
    assert calls == [1, 1]


def test_a_refusal_names_the_set_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    made = model("""(float[B, 8] left, float[B, 8] right, float s) => (float[B, 8] y, float[B, 8] z)
        { y = Dropout(left, s)  z = Dropout(right, s) }""")
    nodes, (y, z) = list(made.graph), made.graph.outputs
    nodes[0].name, nodes[1].name = "first", "second"
    asked = Verdicts({"": 20}, plan, verdicts.lower_region)
    with pytest.raises(Decline) as one:
        asked.ask(nodes[:1], [y])
    with pytest.raises(Decline) as two:
        asked.ask(nodes[1:], [z])
    assert (one.value.node, two.value.node) == ("first", "second")
    assert calls == [1]
