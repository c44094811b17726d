"""Whole models that once came out wrong, each as small as it can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conf_serve import Array, parse, serve


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_integer_and_bool_tables_that_a_kernel_reads_are_inputs(tmp_path: Path) -> None:
    """Small integer constants moved into the composite's body, where no pointer of the kernel leads to them."""
    model = parse("""g (float[N,4] x, int64[N,4] i) => (float[N,4] y, int64[N,4] j) {
        y = Where(mask, x, zero)
        j = Add(i, table)
    }""", mask=np.array([False, True, True, False]), zero=np.float32(0), table=np.arange(4))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    served.check(x=normal(3, 4), i=np.arange(12).reshape(3, 4))


def test_a_constant_may_be_data_and_steer_a_view_at_once(tmp_path: Path) -> None:
    model = parse("""g (int64[8,2] x) => (int64[4,2] y) {
        p = Mul(x, x)
        t = Transpose<perm=[1,0]>(p)
        s = Slice(t, zero, both, axes)
        u = Transpose<perm=[1,0]>(s)
        r = Slice(u, zero, four, axes2)
        y = Add(r, both)
    }""", zero=np.array([0, 0]), both=np.array([2, 4]), axes=np.array([0, 1]), axes2=np.array([0, 1]),
        four=np.array([4, 2]))
    serve(model, tmp_path).check(x=np.arange(16).reshape(8, 2))


def test_an_initializer_that_the_caller_overrides_is_no_constant(tmp_path: Path) -> None:
    model = parse("""g (float[N,4] x, float k, float[4] b) => (float[N,4] y) {
        t = Mul(x, k)
        u = Add(t, b)
        y = Tanh(u)
    }""", k=np.float32(2), b=np.ones(4, np.float32))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    served.check(x=normal(3, 4))
    served.check(x=normal(3, 4), k=np.array(-0.5, np.float32), b=normal(4, seed=1))


SHARED = """g (float[B,S,64] x, float[B,4,S,16] w) => (float[B,4,S,16] y, float[B,4,S,16] z, float[B,S,64] t) {
    e = Exp(w)
    m = MatMul(x, k)
    t = Tanh(m)
    v = Reshape(t, heads)
    p = Transpose<perm=[0,2,1,3]>(v)
    y = Mul(e, p)
    z = Sub(p, w)
}"""


def test_views_that_several_regions_share(tmp_path: Path) -> None:
    """The region of `y` comes first and copies views; what they read must stay an output of the region of `t`."""
    model = parse(SHARED, k=normal(64, 64) / 8, heads=np.array([0, 0, 4, 16]))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    for batch, seq in ((2, 3), (1, 1)):
        served.check(x=normal(batch, seq, 64), w=normal(batch, 4, seq, 16, seed=1))


def test_a_reshape_inside_a_region_tells_no_extents(tmp_path: Path) -> None:
    """[batch*seq, 8] does not say what batch and seq are: a kernel of its reshape cannot name its output's shape."""
    model = parse("""g (float[batch,seq,8] x) => (float[batch,seq,8] y) {
        flat = Reshape(x, rows)
        m = MatMul(flat, k)
        shape = Shape(x)
        v = Reshape(m, shape)
        y = Softmax(v)
    }""", rows=np.array([-1, 8]), k=normal(8, 8))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    served.check(x=normal(2, 3, 8))
    served.check(x=normal(1, 5, 8))
    assert not list(served.model.diagnostics.of("codegen", taken=False))


def test_sequences_and_optionals_stay_out_of_regions(tmp_path: Path) -> None:
    model = parse("""g (seq(float[2]) s, float[2] x) => (seq(float[2]) t, float[2] y) {
        t = Identity(s)
        u = Tanh(x)
        y = Mul(u, x)
    }""")
    served = serve(model, tmp_path)
    parts = [normal(2), normal(2, seed=1)]
    found, y = served.session.run(None, {"s": parts, "x": normal(2)})
    assert all(np.array_equal(a, b) for a, b in zip(found, parts, strict=True))
    np.testing.assert_allclose(y, np.tanh(normal(2)) * normal(2), rtol=1e-6)


def test_an_if_that_answers_with_a_sequence_keeps_its_type(tmp_path: Path) -> None:
    model = parse("""g (bool c, float[N] x) => (int64 n) {
        s = If(c) <then_branch = a () => (seq(float[N]) p) { p = SequenceConstruct(x, x) },
                   else_branch = b () => (seq(float[N]) q) { t = Tanh(x) q = SequenceConstruct(t) }>
        n = SequenceLength(s)
    }""")
    served = serve(model, tmp_path)
    for flag in (True, False):
        served.check(c=np.array(flag), x=normal(3))


def test_bodies_that_onnx_runtime_expands_late_hold_no_kernels(tmp_path: Path) -> None:
    """ONNX Runtime expands SequenceMap after the provider took its nodes; its Loop then lacked their domain."""
    model = parse("""g (seq(float[2,3]) s, float[2,3] x) => (seq(float[2,3]) t, float[2,3] y) {
        t = SequenceMap(s) <body = b (float[2,3] e) => (float[2,3] r) { r = Mul(e, e) }>
        u = Tanh(x)
        y = Mul(u, x)
    }""")
    served = serve(model, tmp_path)
    parts = [normal(2, 3), normal(2, 3, seed=1)]
    found, _ = served.session.run(None, {"s": parts, "x": normal(2, 3)})
    assert len(found) == 2
    for a, b in zip(found, parts, strict=True):
        np.testing.assert_allclose(a, b * b, rtol=1e-6)


LOOP = """g (int64 n, float[2,4] x) => (float[2,4] y, float[K,2,4] z) {
    go = Constant<value = bool {1}>()
    y, z = Loop(n, go, x) <body = b (int64 i, bool c, float[2,4] s) => (bool d, float[2,4] next, float[2,4] each) {
        d = Identity(c)
        t = Tanh(s)
        u = Add(t, x)
        next = Mul(u, t)
        each = Exp(u)
    }>
}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_kernels_inside_a_loop(tmp_path: Path, trips: int) -> None:
    served = serve(parse(LOOP), tmp_path)
    assert served.kernels > 0
    served.check(n=np.array(trips), x=normal(2, 4))


GROWING = """g (int64 n, float[2,4] x) => (float[Q,4] y) {
    go = Constant<value = bool {1}>()
    y = Loop(n, go, x) <body = b (int64 i, bool c, float[P,4] s) => (bool d, float[R,4] next) {
        d = Identity(c)
        t = Tanh(s)
        u = Add(t, s)
        next = Concat<axis=0>(u, s)
    }>
}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_state_that_grows_has_no_fixed_shape(tmp_path: Path, trips: int) -> None:
    serve(parse(GROWING), tmp_path).check(n=np.array(trips), x=normal(2, 4))


def test_concatenations_that_meet_in_an_unknown_order(tmp_path: Path) -> None:
    """Their bounds s and t have no certain order: neither size may be assumed to be the smaller one."""
    model = parse("""g (float[b,s,8] p, float[b,t,8] q) => (float[b,r,8] y) {
        e = Tanh(p)
        c = Concat<axis=1>(e, q)
        d = Concat<axis=1>(q, e)
        y = Mul(c, d)
    }""")
    served = serve(model, tmp_path)
    for s, t in ((6, 3), (3, 6), (4, 4), (0, 2), (2, 0)):
        served.check(p=normal(2, s, 8), q=normal(2, t, 8, seed=1))


ZERO = """g (float[N,M,8] x) => (float[N,M,8] y, float[N,M] z, float[N,8,M] t) {
    y = Softmax(x)
    z = ReduceMax<keepdims=0>(x, last)
    e = Exp(x)
    t = Transpose<perm=[0,2,1]>(e)
}"""


@pytest.mark.parametrize("shape", [(0, 3, 8), (3, 0, 8), (1, 1, 8), (2, 3, 8)])
def test_empty_inputs_give_empty_results(tmp_path: Path, shape: tuple[int, ...]) -> None:
    serve(parse(ZERO, last=np.array([-1])), tmp_path).check(x=normal(*shape))


def test_the_mean_of_nothing_is_zero(tmp_path: Path) -> None:
    """As in ONNX Runtime; numpy says NaN."""
    model = parse("g (float[N,M] x) => (float[N,1] y) { e = Exp(x)  y = ReduceMean<keepdims=1>(e, last) }",
                  last=np.array([-1]))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    (empty,) = served.check(x=normal(3, 0))
    assert empty.tolist() == [[0], [0], [0]]
    served.check(x=normal(3, 7))


def test_a_stale_declared_shape_is_not_believed(tmp_path: Path) -> None:
    model = parse("g (float[N,8] x) => (float[N,8] y) <float[1,8] t> { t = Tanh(x)  y = Mul(t, t) }")
    served = serve(model, tmp_path)
    served.check(x=normal(1, 8))
    served.check(x=normal(3, 8))


def test_a_region_that_only_copied_views_read_is_gone(tmp_path: Path) -> None:
    """Every reader of the Split took a copy of it and of the Expand behind it, which was a kernel by then."""
    model = parse("""g (float[N,17,1] x) => (float[N,5,17] y, float[N,12,17] z) {
        e = Expand(x, wide)
        a, b = Split<axis=1>(e, parts)
        y = Atan(a)
        z = Sub(b, row)
    }""", wide=np.array([1, 17, 17]), parts=np.array([5, 12]), row=normal(17))
    served = serve(model, tmp_path)
    assert served.kernels > 0
    served.check(x=normal(3, 17, 1))
