"""Ifs of undecided rank: what moves into their branches, which conditions then are decided, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.unit.passes.exact import run_exactly
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.control import VersionBranches
from tilegraph.rewrites.normalise import NORMALISE

Arrays = dict[str, np.ndarray[Any, Any]]

# One branch leaves out a dim, the other one keeps it; what follows works on both.
RANKS = """g (float[2,3,1] x, bool c, float[3,1] s) => (float y) {
    zero = Constant<value = int64[1] {0}>() last = Constant<value = int64[1] {2}>()
    a = Relu(x)
    r = If (c) <then_branch = t () => (float[2,3] p) { p = Squeeze(a, last) },
                else_branch = e () => (float[2,3,1] q) { q = Identity(a) }>
    m = Tanh(s) k = Exp(m) n = ReduceSum<keepdims=0>(k)
    u = Mul(r, r) v = ReduceSum<keepdims=0>(u) y = Mul(v, n) }"""
X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3, 1), "s": np.array([[0.1], [0.2], [0.7]], np.float32)}


def versioned(text: str, **arrays: np.ndarray[Any, Any]) -> tuple[onnx.ModelProto, ir.Model, PassContext, bool]:
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    context = PassContext()
    modified = run_exactly(VersionBranches(), model, context)
    assert [(v.name, v.dtype) for v in model.graph.outputs] == [
        (v.name, v.dtype) for v in ir.from_proto(proto).graph.outputs]
    return proto, model, context, modified


def same(proto: onnx.ModelProto, model: ir.Model, feeds: Arrays) -> None:
    for a, b in zip(ReferenceEvaluator(proto).run(None, feeds),
                    ReferenceEvaluator(ir.to_proto(model)).run(None, feeds), strict=True):
        assert np.ptp(a) > 0 or a.size == 1
        np.testing.assert_array_equal(a, b)


def ops(graph: ir.Graph) -> list[str]:
    return [n.op_type for n in graph if n.op_type != "Constant"]


def branches(model: ir.Model) -> dict[str, list[str]]:
    (node,) = [n for n in model.graph if n.op_type == "If"]
    return {key: ops(node.attributes[key].as_graph()) for key in ("then_branch", "else_branch")}


def reasons(context: PassContext, taken: bool) -> list[str]:
    return [d.reason for d in context.diagnostics.of("version-branches", taken=taken)]


@pytest.mark.parametrize("condition", [True, False])
def test_what_follows_moves_into_both_branches_and_what_only_it_reads(condition: bool) -> None:
    proto, model, _, modified = versioned(RANKS)
    assert modified
    assert ops(model.graph) == ["Relu", "If"]
    rest = ["Tanh", "Exp", "ReduceSum", "Mul", "ReduceSum", "Mul"]
    assert branches(model) == {"then_branch": ["Squeeze", *rest], "else_branch": rest}
    same(proto, model, {**X, "c": np.array(condition)})


@pytest.mark.parametrize("condition", [True, False])
def test_results_of_the_if_that_are_outputs(condition: bool) -> None:
    """An output that the branch makes itself, twice, and one of the rest."""
    text = """g (float[2,1] x, bool c) => (float y, float[m] z, float[m] w) {
        r, z = If (c) <
            then_branch = t () => (float p, float[2] p2) {
                p2 = ReduceSum<keepdims=0>(x, one) p = ReduceSum<keepdims=0>(p2) },
            else_branch = e () => (float[2] q, float[2] q2) {
                n = Neg(x) q = ReduceSum<keepdims=0>(n, one) q2 = Identity(q) }>
        w = Identity(z) y = ReduceSum<keepdims=0>(r) }"""
    proto, model, _, modified = versioned(text, one=np.array([1]))
    assert modified
    same(proto, model, {"x": np.array([[1.5], [4]], np.float32), "c": np.array(condition)})


@pytest.mark.parametrize("condition", [True, False])
def test_conditions_behind_are_decided_and_bodies_read_what_moved(condition: bool) -> None:
    text = """g (float[2,3,1] x, bool c, int64 n) => (float[2,3] y) {
        two = Constant<value = int64 {2}>() last = Constant<value = int64[1] {2}>() go = Constant<value = bool {1}>()
        r = If (c) <then_branch = t () => (float[2,3] p) { p = Squeeze(x, last) },
                    else_branch = e () => (float[2,3,1] q) { q = Neg(x) }>
        s = Shape(r) k = Size(s) d = Equal(k, two)
        f = If (d) <then_branch = t2 () => (float[2,3] p) { p = Exp(r) },
                    else_branch = e2 () => (float[2,3] q) { h = Abs(r) q = Squeeze(h, last) }>
        y = Loop (n, go, f) <body = b (int64 i, bool ci, float[2,3] v) => (bool co, float[2,3] vo) {
            co = Identity(ci) m = ReduceMax<keepdims=0>(r) vo = Add(v, m) }> }"""
    proto, model, _, modified = versioned(text)
    assert modified
    found = branches(model)
    assert found["then_branch"] == ["Squeeze", "Exp", "Loop"]
    assert found["else_branch"] == ["Neg", "Abs", "Squeeze", "Loop"]
    same(proto, model, {"x": X["x"] - 2, "c": np.array(condition), "n": np.array(3)})


LSTM = """g (float[B,64,L] x) => (float[1,n,32] y) {{
    one = Constant<value = int64[1] {{1}}>() two = Constant<value = int64[1] {{2}}>()
    zero = Constant<value = int64[1] {{0}}>() rank = Constant<value = int64 {{2}}>()
    s = Shape(x) e = Gather(s, two) c = Equal(e, one)
    r = If (c) <then_branch = t () => (float[m,k] p) {{ p = {then} }},
                else_branch = e () => (float[m,k,l] q) {{ q = Identity(x) }}>
    {rest} }}"""
STEP = "u = Unsqueeze(r, zero) z, y = LSTM <hidden_size = 32> (u, w, v)"
WEIGHTS = {"w": np.linspace(-1, 1, 128 * 64, dtype=np.float32).reshape(1, 128, 64),
           "v": np.linspace(1, -1, 128 * 32, dtype=np.float32).reshape(1, 128, 32)}


def test_a_branch_that_always_fails_leaves_the_other_one() -> None:
    """Of rank 3, the signal would make LSTM's input one of rank 4; of another length than 1, Squeeze fails."""
    proto, model, context, _ = versioned(LSTM.format(then="Squeeze(x, two)", rest=STEP), **WEIGHTS)
    assert ops(model.graph) == ["Squeeze", "Unsqueeze", "LSTM"]
    assert any("then_branch is left: the other one always fails (LSTM" in r for r in reasons(context, True))
    feeds = {"x": np.random.default_rng(3).normal(size=(2, 64, 1)).astype(np.float32)}
    same(proto, model, feeds)
    for wrong in (proto, ir.to_proto(model)):  # an error before, an error after
        with pytest.raises(Exception):  # noqa: B017, PT011
            ReferenceEvaluator(wrong).run(None, {"x": np.zeros((2, 64, 3), np.float32)})


def test_a_negated_condition_says_the_same_of_the_other_branch() -> None:
    text = LSTM.format(then="Squeeze(x, two)", rest=STEP)
    negated = text.replace("c = Equal(e, one)", "d = Equal(e, one) c = Not(d)")
    swapped = (negated.replace("then_branch = t", "THEN").replace("else_branch = e", "then_branch = e")
               .replace("THEN", "else_branch = t"))
    proto, model, context, _ = versioned(swapped, **WEIGHTS)
    assert ops(model.graph) == ["Squeeze", "Unsqueeze", "LSTM"]
    assert any("else_branch is left" in r for r in reasons(context, True))
    same(proto, model, {"x": np.random.default_rng(3).normal(size=(2, 64, 1)).astype(np.float32)})
    # Negated alone, it sends a length of 1 into the branch that fails.
    _, model, context, _ = versioned(negated.replace("float[1,n,32] y", "float[a,b,c] y"), **WEIGHTS)
    assert "If" in ops(model.graph)


@pytest.mark.parametrize(("then", "rest"), [
    # Without Squeeze the first branch can run for any length: the condition chooses.
    ("ReduceSum<keepdims=0>(x, two)", STEP),
    # Both branches can run.
    ("Squeeze(x, two)", "y = ReduceSum<keepdims=1>(r)"),
    # Another extent is asked about than the one that is left out.
    ("Squeeze(x, zero)", STEP),
])
def test_other_conditions_stay(then: str, rest: str) -> None:
    """A branch that always fails must not be written down: ONNX Runtime would not load the model."""
    text = LSTM.format(then=then, rest=rest).replace("float[1,n,32] y", "float[a,b,c] y")
    proto, model, context, modified = versioned(text, **WEIGHTS)
    assert "If" in ops(model.graph)
    assert modified is (rest != STEP)
    assert modified or any("what follows contradicts itself" in r for r in reasons(context, False))
    if then != "Squeeze(x, zero)":
        same(proto, model, {"x": np.random.default_rng(3).normal(size=(2, 64, 1)).astype(np.float32)})


@pytest.mark.parametrize("text", [
    # One rank: nothing is undecided.
    """g (float[2,3] x, bool c) => (float[2,3] y) {
        r = If (c) <then_branch = t () => (float[2,3] p) { p = Relu(x) },
                    else_branch = e () => (float[2,3] q) { q = Neg(x) }> y = Exp(r) }""",
    # Nothing follows.
    """g (float[2,3] x, bool c) => (float y) {
        y = If (c) <then_branch = t () => (float[2,3] p) { p = Relu(x) },
                    else_branch = e () => (float q) { q = ReduceSum<keepdims=0>(x) }> }""",
])
def test_kept(text: str) -> None:
    _, _, _, modified = versioned(text)
    assert not modified


def test_in_a_body() -> None:
    inner = RANKS[RANKS.index("{"):].replace("y = Mul(v, n)", "w = Mul(v, n)").replace("(c)", "(d)")
    text = f"""g (float[2,3,1] x, bool c, float[3,1] s, bool d) => (float y) {{
        y = If (c) <then_branch = outer () => (float w) {inner},
                    else_branch = other () => (float w2) {{ w2 = ReduceSum<keepdims=0>(x) }}> }}"""
    proto, model, _, modified = versioned(text)
    assert modified
    for c in (True, False):
        for d in (True, False):
            same(proto, model, {**X, "c": np.array(c), "d": np.array(d)})


def test_a_long_rest_is_refused_and_so_are_many_versions() -> None:
    chain = "".join(f"u{k + 1} = Exp(u{k}) " for k in range(401))
    text = RANKS.replace("u = Mul(r, r) v = ReduceSum<keepdims=0>(u)",
                         f"u0 = Mul(r, r) {chain} v = ReduceSum<keepdims=0>(u401)")
    _, _, context, modified = versioned(text)
    assert not modified
    assert any("nodes behind it would be copied, more than 400" in r for r in reasons(context, False))
    steps = "".join(f"""r{k + 1} = If (c{k}) <
        then_branch = t{k} () => (float p{k}) {{ p{k} = ReduceSum<keepdims=0>(r{k}) }},
        else_branch = e{k} () => (float[2] q{k}) {{ f{k} = ReduceSum<keepdims=0>(r{k}) q{k} = Expand(f{k}, two) }}> """
                    for k in range(5))
    inputs = ", ".join(f"bool c{k}" for k in range(5))
    text = f"g (float[2] r0, {inputs}) => (float y) {{ {steps} y = ReduceSum<keepdims=0>(r5) }}"
    proto, model, context, modified = versioned(text, two=np.array([2]))
    assert modified
    assert any("the model has 8 versions already" in r for r in reasons(context, False))
    for bits in (0, 9, 31):
        feeds: Arrays = {f"c{k}": np.array(bool(bits >> k & 1)) for k in range(5)}
        same(proto, model, {"r0": np.array([0.5, 3], np.float32), **feeds})
