"""Masks that graphs compute from positions: right at any length, and blocks that they hide are left out."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

from tests.numeric.attention.attn_runner import compile_attention, run
from tests.numeric.codegen.runner import Array
from tests.unit.attention.attn_support import fused
from tilegraph.codegen.attention.operands import Operands

# What is seen, y, from `r` [s, 1] and `c` [1, s], int64 positions of queries and keys, and `m` [b, s] bool.
SEEN = {
    "chunks": "a = Div(r, n64) d = Div(c, n64) y = Equal(a, d)",
    "chunks of floor division": """a0 = Div(r, n64) ra = Mod(r, n64) na = Equal(ra, n0) oa = Not(na) la = Less(r, n0)
        lc = Less(n64, n0) ta = Equal(la, lc) fa = Not(ta) wa = And(oa, fa) sa = Sub(a0, n1)
        a = Where(wa, sa, a0) d = Div(c, n64) y = Equal(a, d)""",
    "chunks of floats": """rf = Cast <to = 1> (r) cf = Cast <to = 1> (c) ad = Div(rf, f41) a = Floor(ad)
        dd = Div(cf, f41) d = Floor(dd) y = Equal(a, d)""",
    "chunks by remainders": "a = Mod(r, n64) b = Sub(r, a) d = Mod(c, n64) e = Sub(c, d) y = Equal(b, e)",
    "strided": """t = Sub(r, c) o = Mod(t, n5) z = Equal(o, n0) l = Less(t, n7) u = Or(z, l) p = LessOrEqual(c, r)
        y = And(u, p)""",
    "dilated": """t = Sub(r, c) g = Abs(t) o = Mod(g, n7) z = Equal(o, n0) l = LessOrEqual(g, n64) y = And(z, l)""",
    "strided in int32": """r3 = Cast <to = 6> (r) c3 = Cast <to = 6> (c) t = Sub(r3, c3) n3 = Cast <to = 6> (n5)
        o = Mod(t, n3) o3 = Cast <to = 6> (n1) y = LessOrEqual(o, o3)""",
    "prefix": "quarter = Div(length, n4) a = Less(c, quarter) b = LessOrEqual(c, r) y = Or(a, b)",
    "distance in floats": """rf = Cast <to = 1> (r) cf = Cast <to = 1> (c) t = Sub(rf, cf) g = Abs(t) h = Div(g, f41)
        y = Less(h, f1)""",
    "gathered": """nn = Less(c, n0) cn = Add(c, length) at = Where(nn, cn, c)
        mt = Transpose <perm = [1, 0]> (m) row = Squeeze(at, n0l) g = Gather <axis = 0> (mt, row)
        gt = Transpose <perm = [1, 0]> (g) gu = Unsqueeze(gt, n1l) p = LessOrEqual(c, r) y3 = And(gu, p)
        y = Unsqueeze(y3, n1l)""",
    "gathered flat": """dims = Shape(m) rows = Gather(dims, n0) width = Gather(dims, n1) bs = Range(n0, rows, n1)
        b3 = Unsqueeze(bs, n12l) start = Mul(b3, width) at = Add(start, c) flat = Reshape(m, lessl)
        g = Gather <axis = 0> (flat, at) p = LessOrEqual(c, r) y3 = And(g, p) y = Unsqueeze(y3, n1l)""",
}
HIDE = {
    "where": "x = Where(y, scores, low)",
    "clipped": "x0 = Where(y, scores, lowest) x = Clip(x0, floor, ceiling)",
    "multiplied": """m0 = Cast <to = 1> (y) left = Mul(scores, m0) rest = Sub(f1, m0) pen = Mul(rest, large)
        x = Sub(left, pen)""",
}


def attention(seen: str, hide: str = "where") -> onnx.ModelProto:
    lowest = float(np.finfo(np.float32).min)
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[b, 2, s, 8] q, float[b, 2, s, 8] k, float[b, 2, s, 8] v, bool[b, s] m) => (float[b, 2, s, 8] out)
        <int64 n0 = {{0}}, int64 n1 = {{1}}, int64 n4 = {{4}}, int64 n5 = {{5}}, int64 n7 = {{7}}, int64 n64 = {{64}},
         float f41 = {{41}}, float f1 = {{1}}, float low = {{0}}, float lowest = {{{lowest!r}}}, float floor = {{-5e4}},
         float ceiling = {{5e4}}, float large = {{1e9}}, int64[1] n0l = {{0}}, int64[1] n1l = {{1}},
         int64[2] n12l = {{1, 2}}, int64[1] lessl = {{-1}}> {{
        kt = Transpose <perm = [0, 1, 3, 2]> (k) scores = MatMul(q, kt)
        sizes = Shape <start = 2, end = 3> (q) length = Squeeze(sizes)
        places = Range(n0, length, n1) r = Unsqueeze(places, n1l) c = Unsqueeze(places, n0l)
        {SEEN[seen]} {HIDE[hide]}
        weights = Softmax <axis = -1> (x) out = MatMul(weights, v) }}"""
    model = parser.parse_model(text)
    next(i for i in model.graph.initializer if i.name == "low").CopyFrom(from_array(np.float32(-np.inf), "low"))
    return model


def operands(length: int, batch: int = 2) -> dict[str, Array]:
    rng = np.random.default_rng(length)
    feeds = {n: rng.standard_normal((batch, 2, length, 8)).astype(np.float32) for n in "qkv"}
    feeds["m"] = rng.random((batch, length)) < 0.8
    feeds["m"][:, 0] = True
    return {**feeds, "sizes": np.array([length])}  # kernels read it, models compute it


def expected(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {k: v for k, v in feeds.items() if k != "sizes"})
    return np.asarray(out)


@pytest.mark.parametrize(("seen", "hide"), [*((s, "where") for s in SEEN if s != "chunks"), ("chunks", "clipped"),
                                            ("strided", "multiplied")])
def test_any_length(seen: str, hide: str) -> None:
    model = attention(seen, hide)
    compiled, _, graph = compile_attention(model)
    (decision,) = fused(model)[1]
    assert decision.data["kind"] == ("mask+positions" if "gathered" in seen else "positions")
    for length in (1, 7, 64, 205):
        feeds = operands(length)
        np.testing.assert_allclose(run(compiled, graph, feeds, tasks=2), expected(model, feeds), rtol=0, atol=3e-6)


@pytest.mark.parametrize(("seen", "hide"), [
    ("chunks", "clipped"), ("chunks", "multiplied"), ("chunks by remainders", "where"), ("distance in floats", "where"),
    ("gathered flat", "where")])
def test_hidden_blocks_are_left_out(seen: str, hide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are not finite show which rows read them, once the bound on the scores does not."""
    monkeypatch.setattr(Operands, "score_bound", lambda self: self.e.f32(100.0))
    model = attention(seen, hide)
    compiled, _, graph = compile_attention(model)
    feeds = operands(640)
    want = expected(model, feeds)
    for name in "kv":
        feeds[name][:, :, 512:] = np.nan
    got = run(compiled, graph, feeds)
    assert np.isfinite(got[:, :, :256]).all()
    np.testing.assert_allclose(got[:, :, :256], want[:, :, :256], rtol=0, atol=3e-6)
    assert np.isnan(got[:, :, 600:]).any()
