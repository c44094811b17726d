"""The passes together: order, names, stability, and the outputs of a graph in every odd form."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from norm_check import SPECIAL, ops, same_answers, serialized

from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.instruments import CheckInstrument
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.normalise import NORMALISE

X = {"x": SPECIAL, "c": np.array(True)}

MIXED = """
    <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    g (float[8] x, bool c) => (float[8] y, float[8] same, float[8] again, float[8] twice, float[1] const) {
        s = Shape(x)  flat = Reshape(x, s)  a = Identity(flat)
        k = Constant <value_floats = [2.0]> ()  k2 = Constant <value_floats = [2.0]> ()
        m = Mul(a, k)  m2 = Mul(a, k2)  n = Add(m, m2)  dead = Exp(n)
        y = If (c) <
            then_branch = t () => (float[8] r) {
                q = Constant <value_floats = [2.0]> ()  v = Mul(n, q)  r = Identity(v) },
            else_branch = e () => (float[8] p) { one = Constant <value_float = 1.0> ()  o = Mul(n, one)  p = Neg(o) }>
        same = Identity(x)  again = f.keep(n)  twice = Identity(n)  const = Neg(k)
    }
    <domain: "f", opset_import: ["" : 17]> keep (v) => (v2) { v2 = Identity(v) }"""


def test_names_are_unique_and_in_kebab_case() -> None:
    names = [p.name for p in NORMALISE]
    assert len(set(names)) == len(names)
    assert all(n == n.lower().replace("_", "-").replace(" ", "-") for n in names)


def test_a_mixed_model() -> None:
    model = load(onnx.parser.parse_model(MIXED))
    before = serialized(model)
    assert Pipeline(NORMALISE, instruments=[CheckInstrument()]).run(model, PassContext()).modified
    same_answers(before, serialized(model), X)
    same_answers(before, serialized(model), {**X, "c": np.array(False)})
    # x*2 once; n; the If with its Mul and its Neg; names kept by Identities for the outputs that share a value.
    assert sorted(ops(model)) == ["Add", "Identity", "Identity", "Identity", "If", "Mul", "Mul", "Neg"]
    assert [v.name for v in model.graph.outputs] == ["y", "same", "again", "twice", "const"]


def test_a_second_run_changes_nothing() -> None:
    model = load(onnx.parser.parse_model(MIXED))
    Pipeline(NORMALISE).run(model, PassContext())
    before = serialized(model).SerializeToString(deterministic=True)
    assert not Pipeline(NORMALISE).run(model, PassContext()).modified
    assert serialized(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", [p.name for p in NORMALISE])
def test_any_pass_may_be_disabled(name: str) -> None:
    model = load(onnx.parser.parse_model(MIXED))
    before, context = serialized(model), PassContext()
    Pipeline(NORMALISE, disabled=[name]).run(model, context)
    check_model(model)
    same_answers(before, serialized(model), X)
    assert any(d.subject == name and not d.taken for d in context.diagnostics)


def test_identical_models_give_identical_results() -> None:
    results = set()
    for _ in range(2):
        model = load(onnx.parser.parse_model(MIXED))
        Pipeline(NORMALISE).run(model, PassContext())
        results.add(serialized(model).SerializeToString(deterministic=True))
    assert len(results) == 1


def test_the_same_output_twice() -> None:
    model = load(onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[8] x) => (float[8] y) { a = Neg(x)  y = Identity(a) }"""))
    model.graph.outputs.append(model.graph.outputs[0])
    Pipeline(NORMALISE).run(model, PassContext())
    assert [v.name for v in model.graph.outputs] == ["y", "y"]
    assert ops(model) == ["Neg"]
    check_model(model, onnx_checker=False)


def test_outputs_that_are_inputs_or_initializers() -> None:
    model = load(onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[8] x) => (float[8] x, float[2] w, float[8] y) <float[2] w = {1.0, 2.0}, float[2] v = {1.0, 2.0}>
        { n = ReduceSum(v)  y = Add(x, n) }"""))
    before = serialized(model)
    Pipeline(NORMALISE, instruments=[CheckInstrument()]).run(model, PassContext())
    assert [v.name for v in model.graph.outputs] == ["x", "w", "y"]
    same_answers(before, serialized(model), {"x": SPECIAL})


def test_a_written_identity_hides_nothing_from_any_pass() -> None:
    """An Expand of a product, and an extent that an input has as well, behind one and without."""
    text = """<ir_version: 10, opset_import: ["" : 17]> g (float[n,4] x, float[1,4] s) => (float[n,4] y, int64 t) {{
        z = Exp(x)  d = Shape(z)  {d2}
        k = Constant<value = int64 {{0}}>()  t = Gather({d}, k)  e = Expand(s, d)  {e2}  y = Mul(z, {e})
    }}"""
    made = []
    for parts in ({"d2": "", "d": "d", "e2": "", "e": "e"},
                  {"d2": "d2 = Identity(d)", "d": "d2", "e2": "e2 = Identity(e)", "e": "e2"}):
        model = load(onnx.parser.parse_model(text.format(**parts)))
        Pipeline(NORMALISE).run(model, PassContext())
        made.append([(n.op_type, [v.name for v in n.inputs if v is not None]) for n in model.graph])
    assert made[0] == made[1]
    assert ("Mul", ["z", "s"]) in made[0]
    assert ("Shape", ["x"]) in made[0]
