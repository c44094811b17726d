"""Optimized models on our execution provider beside the originals on ONNX Runtime with its optimizations off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from tests.unit.fusion.parse import proto
from tilegraph.compiler import OptimizedModel

Array = np.ndarray[Any, Any]

# Linear layers around chains that become kernels; the weights are functions of their position.
LAYERS = """(float[N,8,16] x) => (float[N,8,16] y) {{
    {weights}
    {layers}
    y = Identity(h{last})
}}"""
_LAYER = """
    t{k} = MatMul(h{k}, w{k}) u{k} = Add(t{k}, b{k})
    e{k} = Erf(u{k}) f{k} = Mul(e{k}, u{k}) g{k} = Mul(f{k}, half) r{k} = Add(g{k}, h{k})
    m{k} = ReduceMean(r{k}, last) c{k} = Sub(r{k}, m{k}) q{k} = Mul(c{k}, c{k}) v{k} = ReduceMean(q{k}, last)
    a{k} = Add(v{k}, half) s{k} = Sqrt(a{k}) h{n} = Div(c{k}, s{k})"""


def numbers(count: int, seed: int) -> str:
    return ", ".join(f"{v:.4f}" for v in np.random.default_rng(seed).normal(size=count) * 0.3)


def layers(count: int) -> onnx.ModelProto:
    """`count` equal layers with different weights: MatMul, bias, an activation, a residual and a normalisation."""
    weights = ["half = Constant<value = float {0.5}>() last = Constant<value = int64[1] {-1}>() h0 = Identity(x)"]
    for k in range(count):
        weights.append(f"w{k} = Constant<value = float[16,16] {{{numbers(256, k)}}}>()")
        weights.append(f"b{k} = Constant<value = float[16] {{{numbers(16, 100 + k)}}}>()")
    body = "".join(_LAYER.format(k=k, n=k + 1) for k in range(count))
    return proto(LAYERS.format(weights="\n".join(weights), layers=body, last=count), 18)


BRANCHES = """(float[N,16] x, bool c) => (float[N,16] y) {
    h = Constant<value = float {0.5}>() last = Constant<value = int64[1] {-1}>()
    a = Exp(x) m = Mul(a, h)
    r = If (c) <
        then_branch = t () => (float[N,16] p) { q = Mul(m, x) q1 = Tanh(q) s = ReduceSum(q1, last) p = Sub(q1, s) },
        else_branch = e () => (float[N,16] p2) { z = Sigmoid(m) p2 = Add(z, x) }>
    y1 = Relu(r) y = Mul(y1, a)
}"""

LOOP = """(float[N,16] x, int64 n) => (float[N,16] y) {
    k = Tanh(x) go = Constant<value = bool {1}>()
    y = Loop (n, go, x) <body = b (int64 i, bool ci, float[N,16] s) => (bool co, float[N,16] so) {
        co = Identity(ci) f = Cast<to=1>(i) e = Mul(s, k) d = Add(e, f) so = Tanh(d) }>
}"""

# Reductions over 16 and over 128 elements cannot share a kernel: a value between them lives in the arena.
TWO_KERNELS = """(float[N,8,16] x) => (float[N,128] y) {
    last = Constant<value = int64[1] {-1}>() sh = Constant<value = int64[2] {-1, 128}>()
    m = ReduceMean(x, last) d = Sub(x, m) e = Exp(d) r = Reshape(e, sh) s = Softmax<axis=-1>(r)
    p = Mul(s, r) q = ReduceMax(p, last) y = Sub(p, q)
}"""

# The third kernel reads what the first and the second made: both are alive together.
THREE_KERNELS = """(float[N,8,16] x) => (float[N,8,16] y) {
    last = Constant<value = int64[1] {-1}>() both = Constant<value = int64[2] {1,2}>()
    m = ReduceMean(x, last) e = Sub(x, m) q = Abs(e) s = ReduceSum(q, both) f = Div(e, s)
    g = ReduceMax(f, last) d = Sub(f, g) y = Mul(d, e) }"""


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: list[Array] = session.run(None, dict(feeds))
    return results


def plain(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    """A model with composites on ONNX Runtime alone."""
    return reference(ir.to_proto(model), feeds)


def same(ours: list[Array], theirs: list[Array]) -> None:
    """Equal dtypes and shapes; floats within 16 units of float32 at the largest magnitude: whole models round often."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.size:
            assert np.isfinite(b).all()
            assert np.abs(b).max() > 0
            assert np.abs(a.astype(np.float64) - b).max() <= 16 * 2.0**-23 * np.abs(b).max()


def served(made: OptimizedModel, feeds: Mapping[str, Array], threads: int = 1) -> list[Array]:
    results: list[Array] = made.session(threads).run(None, dict(feeds))
    return results


def normal(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
