"""Unrolled loops against ONNX Runtime on the original: bit for bit before kernels, and through the whole pipeline.

onnx's reference joins what a Loop collects along the first axis of what is there, so it is no reference here.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tilegraph.compiler import optimize
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.invariants import check_model
from tilegraph.rewrites.control import UnrollLoops
from tilegraph.rewrites.normalise import NORMALISE

RNG = np.random.default_rng(3)
CONSTANTS = "".join(f"{name} = Constant<value = {type_} {{{value}}}>() " for name, type_, value in (
    ("zero", "int64", 0), ("one", "int64", 1), ("two", "int64", 2), ("four", "int64", 4), ("eight", "int64", 8),
    ("zf", "float", 0.0), ("yes", "bool[1]", 1), ("twos", "int64[1]", 2)))
CELL = "xt = Gather<axis=0>(x, i) a = MatMul(xt, w) d = MatMul(s, w) p = Add(a, d) q = Add(p, b) t = Tanh(q)"
# What follows `CONSTANTS`, and the outputs.
MODELS = {
    "cell over eight steps": ("float[5,64] h, float[k,5,64] y", f"""
        h, y = Loop (eight, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t, float[5,64] u)
            {{ go = Identity(c) {CELL} u = Identity(t) }}>"""),
    "in a branch that is decided at run time": ("float[5,64] h", f"""
        m = ReduceMean<keepdims=0>(h0) up = Greater(m, zf)
        h = If (up) <then_branch = tb () => (float[5,64] r) {{
            r = Loop (four, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t)
                {{ go = Identity(c) {CELL} }}> }}, else_branch = eb () => (float[5,64] v) {{ v = Neg(h0) }}>"""),
    "a branch in a step, decided by its number": ("float[5,64] h, float[k,5,64] y", """
        h, y = Loop (four, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t, float[5,64] u) {
            go = Identity(c) odd = Mod(i, two) is = Equal(odd, one)
            t = If (is) <then_branch = tb () => (float[5,64] r) { r = MatMul(s, w) },
                         else_branch = eb () => (float[5,64] v) { v = Sin(s) }> u = Exp(t) }>"""),
    "steps of an inner loop by the outer one's number": ("float[5,64] h, int64[k,j] y", """
        h, y = Loop (four, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t, int64[j] n) {
            go = Identity(c)
            t = Loop (i, , s) <body = e (int64 k, bool d, float[5,64] v) => (bool on, float[5,64] z) {
                on = Identity(d) o = Add(v, s) z = Tanh(o) }>
            n = Reshape(i, axis_one) }>"""),
    "a state that grows": ("float[5,m] h, int64[k] y", """
        h, y = Loop (four, , h0) <body = f (int64 i, bool c, float[5,j] s) => (bool go, float[5,l] t, int64 n) {
            go = Identity(c) r = Tanh(s) t = Concat<axis=1>(r, h0) n = Identity(i) }>"""),
    "a list that is joined": ("float[m,5,64] h", """
        e = SequenceEmpty()
        g = Loop (four, , e) <body = f (int64 i, bool c, seq(float[5,64]) s) => (bool go, seq(float[5,64]) t) {
            go = Identity(c) r = Gather<axis=0>(x, i) n = MatMul(r, w) t = SequenceInsert(s, n) }>
        h = ConcatFromSequence<axis=0, new_axis=1>(g)"""),
    "states that change places, one as it is": ("float[5,64] h, float[5,64] g, float[5,64] y", """
        n = Neg(h0)
        h, g, y = Loop (four, , h0, n, h0) <body = f (int64 i, bool c, float[5,64] s, float[5,64] t, float[5,64] r)
            => (bool go, float[5,64] t2, float[5,64] s2, float[5,64] r) {
            go = Less(i, one) s2 = Identity(s) t2 = MatMul(t, w) }>"""),
    "numbers of one element": ("float[5,64] h, int64[k,1] y", """
        h, y = Loop (twos, yes, h0) <body = f (int64[1] i, bool[1] c, float[5,64] s)
            => (bool[1] go, float[5,64] t, int64[1] n) {
            go = Identity(c) m = Cast<to=1>(i) t = Add(s, m) n = Add(i, i) }>"""),
    "no step": ("float[5,64] h, float[k,5,64] y", f"""
        h, y = Loop (zero, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t, float[5,64] u)
            {{ go = Identity(c) {CELL} u = Identity(t) }}>"""),
    "one step": ("float[5,64] h, float[k,5,64] y", f"""
        h, y = Loop (one, , h0) <body = f (int64 i, bool c, float[5,64] s) => (bool go, float[5,64] t, float[5,64] u)
            {{ m = ReduceMax<keepdims=0>(s) go = Less(m, zf) {CELL} u = Identity(t) }}>"""),
    "a scan": ("float[5,64] h, float[k,5,64] y", """
        h, y = Scan<num_scan_inputs = 1, body = f (float[5,64] s, float[5,64] v) => (float[5,64] t, float[5,64] u) {
            a = MatMul(v, w) d = MatMul(s, w) p = Add(a, d) t = Tanh(p) u = Exp(t) }> (h0, x)"""),
    "a scan over other axes, backwards": ("float[8] h, float[8,5,5] y, float[8,64] z", """
        h0f = ReduceSum<keepdims=0>(x, last) h1 = Gather<axis=1>(h0f, zero)
        h, y, z = Scan<num_scan_inputs = 2, scan_input_axes = [1, -2], scan_input_directions = [1, 0],
                 scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
                 body = f (float[8] s, float[8,64] v, float[64] r) => (float[8] t, float[8,5] u, float[64] q) {
            m = MatMul(v, r) t = Add(s, m) n = Unsqueeze(t, last1) u = Mul(n, five) q = Tanh(r) }> (h1, x, h0)"""),
}
LEFT = {"in a branch that is decided at run time": {"If"}}


def model_of(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    outputs, text = MODELS[name]
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[8,5,64] x, float[5,64] h0) => ('
                                    + outputs + ") {" + CONSTANTS + text + "}")
    for label, array in (("w", RNG.standard_normal((64, 64)).astype(np.float32) / 8),
                         ("b", np.full(64, 0.1, np.float32)), ("axis_one", np.array([1])),
                         ("last", np.array([2])), ("last1", np.array([1])),
                         ("five", np.arange(5, dtype=np.float32))):
        proto.graph.initializer.append(numpy_helper.from_array(array, label))
    return proto, {"x": RNG.standard_normal((8, 5, 64)).astype(np.float32),
                   "h0": RNG.standard_normal((5, 64)).astype(np.float32)}


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", MODELS)
def test_the_steps_one_after_another(name: str) -> None:
    proto, feeds = model_of(name)
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    expected = run(ir.to_proto(model), feeds)
    context = PassContext()
    assert UnrollLoops().run(model, context).modified
    check_model(model)
    assert not context.diagnostics.of("unroll-loops", taken=False)
    left = {n.op_type for n in model.graph} & {"If", "Loop", "Scan"}
    assert left == LEFT.get(name, set())
    for original, a, b in zip(run(proto, feeds), expected, run(ir.to_proto(model), feeds), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype) == (original.shape, original.dtype)
        assert a.size == 0 or np.ptp(a) > 0
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, original)


@pytest.mark.parametrize("name", ["cell over eight steps", "a scan"])
def test_all_steps_are_one_partition(name: str) -> None:
    proto, feeds = model_of(name)
    made = optimize(proto)
    assert [n.op_type for n in made.model.graph] == ["EPContext"]
    for a, b in zip(run(proto, feeds), made.session(1).run(None, feeds), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=4e-6 * np.abs(a).max())
