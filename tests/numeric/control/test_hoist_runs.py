"""Loops and Scans of any length whose products left the body give what ONNX Runtime gives for the original."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tilegraph.compiler import optimize
from tilegraph.io import load
from tilegraph.passes import PassContext, Pipeline
from tilegraph.rewrites.control import HoistFromLoops
from tilegraph.rewrites.normalise import NORMALISE

N, H, B = 24, 32, 3
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
# An LSTM's cell, as a scripted module of PyTorch has it: two linear layers, gates by Split.
CELL = """g2 = Gemm<transB = 1>(s, r, bias) g = Add(g1, g2) gi, gf, gc, go = Split<axis = 1>(g)
    ei = Sigmoid(gi) ef = Sigmoid(gf) ec = Tanh(gc) eo = Sigmoid(go) k1 = Mul(ef, cs) k2 = Mul(ei, ec)
    cn = Add(k1, k2) ct = Tanh(cn) t = Mul(eo, ct) t2 = Identity(t)"""
STATE = f"float[B,{H}] h0, float[B,{H}] c0"
ENDS = f"float[B,{H}] h, float[B,{H}] cl, float[n,B,{H}] y"
LOOP = f"""g (float[T,B,{N}] x, {STATE}) => ({ENDS}) {{
    zero = Constant<value = int64 {{0}}>() c = Constant<value = bool {{1}}>() sh = Shape(x) m = Gather(sh, zero) PRE
    h, cl, y = Loop (m, c, h0, c0) <body = b (int64 i, bool k, float[B,{H}] s, float[B,{H}] cs)
        => (bool ko, float[B,{H}] t, float[B,{H}] cn, float[B,{H}] t2) {{
        ko = Identity(k) xt = Gather<axis = 0>(x, INDEX) g1 = Gemm<transB = 1>(xt, w, bias) {CELL} }}> }}"""
SCAN = f"""g (float[B,T,{N}] x, float[T,B,{4 * H}] u, {STATE}) => ({ENDS}) {{
    h, cl, y = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0], body = b
        (float[B,{H}] s, float[B,{H}] cs, float[B,{N}] xt, float[B,{4 * H}] us)
        => (float[B,{H}] t, float[B,{H}] cn, float[B,{H}] t2) {{
        xr = Relu(xt) g0 = Gemm<transB = 1>(xr, w, bias) g1 = Add(g0, us) {CELL} }}> (h0, c0, x, u) }}"""
JOINED = LOOP.replace("PRE", "").replace("INDEX", "i").replace("g1 = Gemm<transB = 1>(xt, w, bias)", "").replace(
    "g2 = Gemm<transB = 1>(s, r, bias) g = Add(g1, g2)",
    "xs = Concat<axis = 1>(xt, s) g0 = MatMul(xs, both) g = Add(g0, bias)")


def made(text: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEAD + text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4 * H, N)), ("r", (4 * H, H)), ("bias", (4 * H,)),
                        ("both", (N + H, 4 * H))):
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def feeds(proto: onnx.ModelProto, steps: int, rows: int = B) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    extents = {"T": steps, "B": rows}
    return {v.name: rng.standard_normal([extents.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim])
            .astype(np.float32) for v in proto.graph.input}


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def compared(theirs: ort.InferenceSession, ours: ort.InferenceSession, given: dict[str, Any]) -> None:
    for a, b in zip(theirs.run(None, given), ours.run(None, given), strict=True):
        assert a.shape == b.shape
        assert a.size == 0 or np.ptp(a) > 0.1
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-6)


@pytest.mark.parametrize("text", [
    LOOP.replace("PRE", "").replace("INDEX", "i"),
    LOOP.replace("PRE", "one = Constant<value = int64 {1}>() last = Sub(m, one)").replace(
        "xt =", "j = Sub(last, i) xt =").replace("INDEX", "j"),
    SCAN, JOINED], ids=["loop", "backwards", "scan", "joined"])
def test_steps_of_any_number(text: str) -> None:
    proto = made(text)
    model = load(proto)
    Pipeline(NORMALISE).run(model, PassContext())
    assert HoistFromLoops().run(model, PassContext()).modified
    theirs, ours = session(proto), session(ir.to_proto(model))
    for steps in (7, 1, *((0,) if "Loop" in text else ())):  # ONNX Runtime refuses a Scan of nothing
        compared(theirs, ours, feeds(proto, steps))
    compared(theirs, ours, feeds(proto, 2, rows=0))


def test_the_whole_pipeline() -> None:
    proto = made(LOOP.replace("PRE", "").replace("INDEX", "i"))
    result = optimize(proto, offload="all")
    (loop,) = [n for n in result.model.graph if n.op_type == "Loop"]
    assert not {n.op_type for n in loop.attributes["body"].as_graph()} & {"Gemm", "MatMul", "Tanh"}
    ours = result.session(1)
    for steps in (7, 1, 0):
        compared(session(proto), ours, feeds(proto, steps))
