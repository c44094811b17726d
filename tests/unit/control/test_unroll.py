"""Loops whose number of steps no input decides: what is left of them, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from tests.unit.passes.exact import run_exactly
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.control import UnrollLoops, unroll
from tilegraph.rewrites.normalise import NORMALISE

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
GO = "ko = Identity(k) r = Identity(q)"
FALLS = "e = ReduceMax<keepdims=0>(q) ko = Less(e, half) r = Identity(q)"
# One state and one collected value; {0}: M, {1}: the initial condition, {2}: the condition of going on, and r.
LOOP = """g (float[3,4] x, int64 n, bool c) => (float[3,4] s, float[u,3,4] y) {{
    zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>() three = Constant<value = int64 {{3}}>()
    many = Constant<value = int64 {{65}}>() no = Constant<value = bool {{0}}>() yes = Constant<value = bool {{1}}>()
    a = Tanh(x)
    s, y = Loop ({0}, {1}, x) <body = b (int64 i, bool k, float[3,4] p) => (bool ko, float[3,4] q, float[3,4] r) {{
        half = Constant<value = float {{0.5}}>() t = Mul(p, half) q = Add(t, a) {2} }}> }}"""


def unrolled(text: str, opset: int = 17) -> tuple[ir.Model, list[str], list[str]]:
    """The model, and what was said of loops that went and of those that stayed."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1, "my" : 1]> '
                                    + text)
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    context = PassContext()
    run_exactly(UnrollLoops(), model, context)
    said = context.diagnostics
    taken, refused = ([d.reason for d in said.of("unroll-loops", taken=t)] for t in (True, False))
    return model, taken, refused


def ops(graph: ir.Graph) -> list[str]:
    return [n.op_type for n in graph]


@pytest.mark.parametrize(("limit", "first", "going", "steps"), [
    ("three", "", GO, 3),
    ("three", "yes", "ko = Identity(yes) r = Identity(q)", 3),
    ("one", "yes", FALLS, 1),  # M ends it, whatever the condition says
    ("many", "", "ko = Less(i, one) r = Identity(q)", 2),
    ("", "yes", "l = Less(i, three) v = Not(l) d = Not(v) ko = And(k, d) r = Identity(q)", 4),
    ("three", "yes", "ko = Identity(no) r = Identity(q)", 1),
])
def test_steps_follow_one_another(limit: str, first: str, going: str, steps: int) -> None:
    model, taken, _ = unrolled(LOOP.format(limit, first, going))
    assert ops(model.graph) == ["Tanh", *["Mul", "Add"] * steps, *["Unsqueeze"] * steps,
                                *["Concat"] * (steps > 1)]
    assert [reason.split(" nodes")[0][:-2] for reason in taken] == [f"{steps} steps of"]
    assert [list(v.shape or ()) for v in model.graph.outputs] == [[3, 4], [steps, 3, 4]]
    p, collected = X, []
    for _ in range(steps):
        p = p * np.float32(0.5) + np.tanh(X)
        collected.append(p)
    s, y = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": X, "n": np.array(0), "c": np.array(True)})
    np.testing.assert_array_equal(s, p)
    np.testing.assert_array_equal(y, np.stack(collected))


@pytest.mark.parametrize(("limit", "first"), [("zero", "yes"), ("three", "no"), ("zero", "c"), ("", "no")])
def test_without_a_step_the_state_is_the_initial_one(limit: str, first: str) -> None:
    model, _, _ = unrolled(LOOP.format(limit, first, GO))
    assert ops(model.graph) == ["Identity", "Identity"]  # outputs have names of their own
    results = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": X, "n": np.array(0), "c": np.array(True)})
    x, empty = map(np.asarray, results)
    np.testing.assert_array_equal(x, X)
    assert empty.shape == (0, 3, 4)
    assert empty.dtype == np.float32


@pytest.mark.parametrize(("limit", "first", "going", "reason"), [
    ("n", "yes", GO, "the number of its steps depends on the inputs"),
    ("three", "c", GO, "whether it takes a step depends on the inputs"),
    ("three", "yes", FALLS, "whether it goes on depends on 'a'"),
    ("three", "yes", "ko = And(k, c) r = Identity(q)", "whether it goes on depends on 'c'"),
    ("many", "yes", GO, "it goes on after 64 steps"),
    ("", "", GO, "it goes on after 64 steps"),
    ("three", "yes", "ko = Identity(k) r = RandomNormalLike(q)", "'.*' .RandomNormalLike. draws random numbers"),
    ("three", "yes", "ko = Identity(k) r = my.Count(q)", "'.*' .my::Count. may keep state"),
])
def test_what_an_input_decides_or_would_not_be_the_same_stays(limit: str, first: str, going: str, reason: str) -> None:
    model, taken, refused = unrolled(LOOP.format(limit, first, going))
    assert "Loop" in ops(model.graph)
    assert not taken
    assert [bool(re.fullmatch(reason, r)) for r in refused] == [True], refused


@pytest.mark.parametrize("room", [15, 14])
def test_the_nodes_that_are_written_are_bounded(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unroll, "MOST_NODES", room)
    model, _, refused = unrolled(LOOP.format("three", "yes", "z = Not(k) ko = Not(z) r = Identity(q)"))
    assert ("Loop" in ops(model.graph)) is (room < 15)
    assert refused == ["3 steps of 5 nodes: at most 64 steps are written out, and 14 nodes in a model, of which 14 are "
                       "left"] * (room < 15)


def test_what_no_step_collects_must_have_a_known_shape() -> None:
    text = """g (float[n,4] x) => (float[u,n,4] y) {
        zero = Constant<value = int64 {0}>()
        s, y = Loop (zero, , x) <body = b (int64 i, bool k, float[n,4] p) => (bool ko, float[n,4] q, float[n,4] r) {
            ko = Identity(k) q = Tanh(p) r = Identity(q) }> }"""
    model, _, refused = unrolled(text)
    assert ops(model.graph) == ["Loop"]
    assert refused == ["there is no step, and what steps would add to 'y' has an unknown shape"]
    model, _, _ = unrolled(text.replace("float[n,4]", "float[3,4]"))
    assert ops(model.graph) == ["Identity"]


@pytest.mark.parametrize("width", [4, 2])
def test_a_step_that_always_fails_is_left_where_it_fails(width: int) -> None:
    """ONNX Runtime loads a loop whose second step cannot run, and not the step alone."""
    text = """g (float[3,4] x) => (float[u,v] s) {{
        two = Constant<value = int64 {{2}}>() w = ConstantOfShape<value = float {{0.5}}>(shape)
        s = Loop (two, , x) <body = b (int64 i, bool k, p) => (bool ko, q) {{
            ko = Identity(k) t = MatMul(p, w) q = Concat<axis=1>(t, t) }}> }}"""
    model, taken, refused = unrolled(text.replace("shape", "m").replace(
        "two =", f"m = Constant<value = int64[2] {{{{4, {width}}}}}>() two =").format())
    assert ("Loop" in ops(model.graph)) is (width == 4), (taken, refused)


def test_a_condition_may_follow_from_a_state_that_starts_as_a_constant() -> None:
    model, taken, _ = unrolled("""g (float[3,4] x) => (float[3,4] s) {
        zero = Constant<value = int64 {0}>() two = Constant<value = int64 {2}>() seven = Constant<value = int64 {7}>()
        yes = Constant<value = bool {1}>()
        n, s = Loop (, yes, zero, x) <body = b (int64 i, bool k, int64 m, float[3,4] p)
            => (bool ko, int64 o, float[3,4] q) { o = Add(m, two) ko = Less(o, seven) q = Tanh(p) }> }""")
    assert ops(model.graph) == ["Tanh"] * 4  # 2, 4, 6, 8
    assert taken == ["4 steps of 3 nodes, one after another"]


def test_sizes_that_a_body_names_are_not_those_of_all_steps() -> None:
    """Sizes of one name are checked to be equal; each step here finds a number of its own."""
    model = load(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (float[9] x, int64 z)
        => (int64 t) {
        two = Constant<value = int64 {2}>() half = Constant<value = float {0.5}>() n0 = NonZero(x)
        s, n, t = Loop (two, , x, n0, z) <body = b (int64 i, bool k, float[9] p, int64[1,c] u, int64 w)
            => (bool ko, float[9] q, int64[1,c] v, int64 o) {
            ko = Identity(k) r = Sub(p, half) q = Relu(r) v = NonZero(q) m = ReduceSum<keepdims=0>(u) o = Add(w, m) }> }
        """))
    assert UnrollLoops().run(model, PassContext()).modified
    found = [n.outputs[0] for n in model.graph if n.op_type == "NonZero"]
    assert len(found) == 2  # that before the loop and the first step's; nothing reads the last one's
    assert "c" not in [d.value for v in found if v.shape is not None for d in v.shape if isinstance(d, ir.SymbolicDim)]
