"""Constant folding: what is computed, what is not, limits, and decided branches. Numerics of each op: tests/numeric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from norm_check import ops, prepared, run

from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.normalise import DeadCode, Fold, LiftConstants, Shapes

STEP = Fold()
X = {"x": np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)}


def constant(model: ir.Model, node: int = 0, index: int = 1) -> np.ndarray:
    value = model.graph[node].inputs[index]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def test_a_chain_of_constants_becomes_one() -> None:
    text = """g (float[3, 4] x) => (float[3, 4] y)
        <float[4] w = {1.0, 2.0, 3.0, 4.0}, float[1] s = {2.0}> { a = Mul(w, s)  b = Neg(a)  c = Sqrt(w)  d = Add(b, c)
        y = Add(x, d) }"""
    model = run(STEP, prepared(text), modified=True, feeds=X)
    assert ops(model) == ["Add"]
    w = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(constant(model), -(w * 2) + np.sqrt(w))


def test_shape_arithmetic_on_fixed_extents() -> None:
    text = """g (float[3, 4] x) => (float[4, 3] y) { s = Shape(x)  i = Constant <value_ints = [1, 0]> ()
        t = Gather(s, i)  y = Reshape(x, t) }"""
    model = run(STEP, prepared(text), modified=True, feeds=X)
    assert ops(model) == ["Reshape"]
    assert constant(model).tolist() == [4, 3]


@pytest.mark.parametrize("node", ["Cast <to = 8> (w)", "CastLike(w, t)"])
def test_numbers_are_not_written_out(node: str) -> None:
    run(STEP, prepared("g (string[n] t) => (string[2] y) <float[2] w = {1.5, 2.0}> { y = " + node + " }"),
        modified=False)


def test_shape_arithmetic_on_symbols_is_kept() -> None:
    text = """g (float[n, 4] x) => (float[4, n] y) { s = Shape(x)  i = Constant <value_ints = [1, 0]> ()
        t = Gather(s, i)  y = Reshape(x, t) }"""
    run(STEP, prepared(text), modified=False)
    run(STEP, prepared(text, dims={"n": 3}), modified=True, feeds=X)


def test_extents_that_cancel() -> None:
    """The count of elements is unknown, the count of heads in it is not."""
    text = """g (float[n, 8] x) => (float[h] y) { s = Size(x)  t = Shape(x)  z = Constant <value_int = 0> ()
        b = Gather(t, z)  q = Div(s, b)  o = Constant <value_ints = [1]> ()  r = Reshape(q, o)  m = Expand(f, r)
        y = Neg(m) }"""
    header = '<ir_version: 8, opset_import: ["" : 17]> '
    model = load(onnx.parser.parse_model(header + text.replace("x)", "x, float[1] f)", 1)))
    Pipeline([LiftConstants(), Shapes()]).run(model, PassContext())
    run(STEP, model, modified=True, feeds={"x": np.ones((3, 8), np.float32), "f": np.ones(1, np.float32)})
    DeadCode().run(model, PassContext())
    assert ops(model) == ["Expand", "Neg"]
    assert constant(model).tolist() == [8]


def test_float_shape_arithmetic_feeds_back_into_shapes() -> None:
    """Upsampling as TorchScript writes it: the new size is computed in floats."""
    text = """g (float[1, 1, 3, 5] x) => (float[a, b, c, d] y)
        <float f = {2.0}, int64 two = {2}, int64[1] zero = {0}, int64[2] nc = {1, 1}> {
        s = Shape(x)  h = Gather(s, two)  hf = Cast <to = 1> (h)  hm = Mul(hf, f)  hl = Floor(hm)
        hi = Cast <to = 7> (hl)  hu = Unsqueeze(hi, zero)  all = Concat <axis = 0> (nc, hu, five)
        y = Resize <mode = "nearest"> (x, , , all) }"""
    model = prepared(text.replace("int64[2] nc", "int64[1] five = {5}, int64[2] nc"))
    run(STEP, model, modified=True)
    assert ops(model) == ["Resize"]
    assert str(model.graph.outputs[0].shape) == "[1,1,6,5]"


def test_graph_outputs_may_be_constant() -> None:
    text = "g (float[3, 4] x) => (float[1] y, float[3, 4] z) <float[1] w = {2.0}> { y = Neg(w)  z = Neg(x) }"
    model = run(STEP, prepared(text), modified=True, feeds=X)
    assert ops(model) == ["Identity", "Neg"]


def test_an_identity_of_a_constant_to_an_output_stays() -> None:
    text = "g (float[3, 4] x) => (float[1] y, float[3, 4] z) <float[1] w = {2.0}> { y = Identity(w)  z = Neg(x) }"
    run(STEP, prepared(text), modified=False)


def test_several_outputs_of_one_node() -> None:
    text = """g (float[3, 4] x) => (float[3, 4] y) <float[2, 4] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> {
        a, b = Split <axis = 0> (w)  c = Add(x, b)  y = Mul(c, a) }"""
    model = run(STEP, prepared(text), modified=True, feeds=X)
    assert ops(model) == ["Add", "Mul"]


# -- refusals ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("body", [
    "r = RandomNormal <shape = [3, 4]> ()  y = Add(x, r)",
    "r = RandomNormalLike(w)  y = Add(x, r)",
    "r = DequantizeLinear(q, s)  y = Add(x, r)",
    "r = my.ops.Same(w)  y = Add(x, r)",
])
def test_never_folded(body: str) -> None:
    constants = "float[4] w = {1.0, 2.0, 3.0, 4.0}, int8[4] q = {1, 2, 3, 4}, float s = {0.5}"
    text = f"g (float[3, 4] x) => (float[3, 4] y) <{constants}> {{ {body} }}"
    run(STEP, prepared(text), modified=False)


def test_an_initializer_that_callers_may_override_is_no_constant() -> None:
    text = """g (float[3, 4] x, float[4] w) => (float[3, 4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}>
        { a = Neg(w)  y = Add(x, a) }"""
    run(STEP, prepared(text), modified=False)


@pytest.mark.parametrize(("body", "reason"), [
    ("z = Constant <value_ints = [0, 0, 0, 0]> ()  o = Constant <value_ints = [1, 2, 3, 4]> ()  a = Div(o, z) "
     "b = Cast <to = 1> (a)  y = Add(x, b)", "divides an integer by zero"),
    ("o = Constant <value_floats = [1e20, 1.0, 2.0, 3.0]> ()  a = Cast <to = 7> (o)  b = Cast <to = 1> (a) "
     "y = Add(x, b)", "outside the integer's range"),
])
def test_undefined_results_are_left_to_the_run(body: str, reason: str) -> None:
    context = PassContext()
    model = prepared(f"g (float[3, 4] x) => (float[3, 4] y) {{ {body} }}")
    STEP.run(model, context)
    (decision,) = context.diagnostics.of("fold", taken=False)
    assert reason in decision.reason
    assert decision.subject in [n.name for n in model.graph]


def test_growth_is_limited_and_said() -> None:
    text = """g (float[3, 4] x, int64 i) => (float[4] y) <int64[2] n = {500, 4}> {
        a = ConstantOfShape <value = float[1] {0.5}> (n)  y = Gather(a, i) }"""
    context = PassContext(fold_limit_bytes=7000)
    model = run(STEP, prepared(text), modified=False, context=context)
    (decision,) = context.diagnostics.of("fold", taken=False)
    assert "limit of 7000" in decision.reason
    assert decision.op == "ConstantOfShape"
    run(STEP, prepared(text), modified=True, context=PassContext(fold_limit_bytes=9000))
    assert ops(model) == ["ConstantOfShape", "Gather"]


def test_the_limit_is_for_the_whole_model() -> None:
    one = "a{i} = ConstantOfShape <value = float[1] {{0.5}}> (n)  y{i} = Gather(a{i}, i)"
    outputs = ", ".join(f"float[4] y{i}" for i in range(3))
    body = " ".join(one.format(i=i) for i in range(3))
    text = f"g (int64 i) => ({outputs}) <int64[2] n = {{500, 4}}> {{ {body} }}"
    model = prepared(text)
    STEP.run(model, PassContext(fold_limit_bytes=17000))
    assert ops(model).count("ConstantOfShape") == 1  # two fit, the third does not
    STEP.run(model, PassContext(fold_limit_bytes=17000))
    assert ops(model).count("ConstantOfShape") == 1  # and a second run does not start afresh


def test_what_is_replaced_does_not_count_as_growth() -> None:
    text = "g (float[3, 64] x) => (float[3, 64] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }"
    header = '<ir_version: 8, opset_import: ["" : 17]> '
    proto = onnx.parser.parse_model(header + text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    model = load(proto)
    Pipeline([Shapes()]).run(model, PassContext())
    run(STEP, model, modified=True, context=PassContext(fold_limit_bytes=0))
    assert ops(model) == ["MatMul"]


def test_mapped_weights_stay_mapped(tmp_path: Path) -> None:
    """Transposing a mapped weight would move it into memory: only what is small enough is."""
    text = "g (float[3, 64] x) => (float[3, 64] y) { t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t) }"
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    onnx.save(proto, str(tmp_path / "m.onnx"), save_as_external_data=True, location="d", size_threshold=0)
    model = load(tmp_path / "m.onnx")
    Shapes().run(model, PassContext())
    run(STEP, model, modified=False, context=PassContext(fold_limit_bytes=16000))
    assert ops(model) == ["Transpose", "MatMul"]


def test_small_shapes_are_folded_however_small_the_limit() -> None:
    text = """g (float[3, 4] x) => (float[4, 3] y) { s = Shape(x)  i = Constant <value_ints = [1, 0]> ()
        t = Gather(s, i)  y = Reshape(x, t) }"""
    run(STEP, prepared(text), modified=True, context=PassContext(fold_limit_bytes=0))


# -- If ---------------------------------------------------------------------------------------------------
BRANCHES = """y, z = If (c) <
    then_branch = t () => (float[3, 4] r, float[3, 4] r2) <float[1] k = {3.0}>
        { a = Mul(x, k)  r = Neg(a)  r2 = Exp(a) },
    else_branch = e () => (float[3, 4] q, float[3, 4] q2) { q = Abs(x)  q2 = Identity(x) }>"""


@pytest.mark.parametrize(("condition", "expected"), [("1", ["Mul", "Neg", "Exp"]), ("0", ["Abs", "Identity"])])
def test_a_decided_branch_moves_out(condition: str, expected: list[str]) -> None:
    text = f"g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) <bool c = {{{condition}}}> {{ {BRANCHES} }}"
    context = PassContext()
    model = run(STEP, prepared(text), modified=True, feeds=X, context=context)
    assert ops(model) == expected
    (decision,) = context.diagnostics.of("fold", taken=True)
    assert "condition is constant" in decision.reason


def test_a_branch_decided_by_shapes() -> None:
    text = """g (float[3, 4] x) => (float[3, 4] y, float[3, 4] z) <int64 one = {1}, int64 four = {4}> {
        s = Shape(x)  d = Gather(s, one)  c = Equal(d, four)  """ + BRANCHES + "}"
    model = run(STEP, prepared(text), modified=True, feeds=X)
    assert [op for op in ops(model) if op not in ("Shape", "Gather", "Equal")] == ["Mul", "Neg", "Exp"]
    open_text = text.replace("float[3, 4] x", "float[3, n] x").replace("float[3, 4]", "float[3, n]")
    assert "If" in ops(run(STEP, prepared(open_text), modified=False))


def test_an_undecided_branch_stays_and_is_folded_inside() -> None:
    branches = BRANCHES.replace("a = Mul(x, k)", "m = Neg(k)  a = Mul(x, m)")
    text = "g (float[3, 4] x, bool c) => (float[3, 4] y, float[3, 4] z) {" + branches + "}"
    model = run(STEP, prepared(text), modified=True, feeds={**X, "c": np.array(True)})
    assert ops(model) == ["If", "Mul", "Neg", "Exp", "Abs", "Identity"]


def test_nested_decided_branches() -> None:
    text = """g (float[3, 4] x) => (float[3, 4] y) <bool c = {1}> {
        y = If (c) <then_branch = t () => (float[3, 4] r) {
                r = If (c) <then_branch = t2 () => (float[3, 4] p) { p = Neg(x) },
                            else_branch = e2 () => (float[3, 4] q) { q = Abs(x) }> },
            else_branch = e () => (float[3, 4] s) { s = Exp(x) }> }"""
    assert ops(run(STEP, prepared(text), modified=True, feeds=X)) == ["Neg"]


def test_loops_stay() -> None:
    text = """g (float[3, 4] x) => (float[3, 4] y) <int64 n = {3}, bool c = {1}> {
        y = Loop (n, c, x) <body = b (int64 i, bool ci, float[3, 4] v) => (bool co, float[3, 4] w)
            { co = Identity(ci)  w = Neg(v) }> }"""
    model = run(STEP, prepared(text), modified=False)
    assert ops(model) == ["Loop", "Identity", "Neg"]
