"""The passes together: names, stability, and a network that needs them all."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from algebra_check import ops, prepared, same, values

from tilegraph.passes import PassContext, Pipeline
from tilegraph.passes.instruments import CheckInstrument
from tilegraph.rewrites.algebra import ALGEBRA
from tilegraph.rewrites.normalise import NORMALISE
from tilegraph.targets import CompilerOptions, get

NET = """g (float[2, 3, 8, 8] x) => (float[2, 4, 1, 1] y, float[2, 4, 6, 6] z) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = BatchNormalization(a, gamma, beta, mean, variance)
    c = Add(b, three)  d = Clip(c, zero, six)  e = Mul(b, d)  f = Div(e, six)
    g0 = Mul(f, s)  h = Add(g0, t)
    i = Conv <pads = [1, 1, 1, 1]> (h, v)
    j = Mul(i, s)  k = Transpose <perm = [0, 2, 3, 1]> (j)  l = Relu(k)  m = Transpose <perm = [0, 3, 1, 2]> (l)
    n = Conv(m, u)  z = Mul(n, s)
    y = ReduceMean <axes = [2, 3]> (z) }"""
ARRAYS = {
    "w": values(4, 3, 3, 3), "v": values(4, 4, 3, 3, seed=6), "u": values(4, 4, 3, 3), "gamma": values(4, low=0.5),
    "beta": values(4), "mean": values(4, seed=3), "variance": values(4, low=0.2, high=1), "three": np.array([3.0]),
    "zero": np.array(0.0), "six": np.array(6.0), "s": np.array([0.9]), "t": np.array([-0.4]),
}


def test_names() -> None:
    names = [p.name for p in ALGEBRA]
    assert len(set(names)) == len(names)
    assert not set(names) & {p.name for p in NORMALISE}
    assert all(n == n.lower().replace("_", "-") for n in names)


def test_the_cpu_target_runs_them_between_normalisation_and_fusion() -> None:
    names = [p.name for p in get("cpu").passes(CompilerOptions())]
    start = names.index(ALGEBRA[0].name)
    assert names[:start] == ["flex-attention", "note-attentions", *(p.name for p in NORMALISE),
                             "list-folded-attentions", "hoist-from-loops", "unroll-loops", "version-branches",
                             "equal-extents"]
    assert names[start:start + len(ALGEBRA)] == [p.name for p in ALGEBRA]
    assert names.index("fuse-regions") >= start + len(ALGEBRA)


def run(disabled: tuple[str, ...] = ()) -> ir.Model:
    model = prepared(NET, opset=17, **ARRAYS)
    before = ir.to_proto(model)
    passes = [p for p in ALGEBRA if p.name not in disabled]
    assert Pipeline(passes, instruments=[CheckInstrument()]).run(model, PassContext()).modified
    same(before, ir.to_proto(model), {"x": values(2, 3, 8, 8).astype(np.float32)}, 1e-5)
    again = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not Pipeline(passes).run(model, PassContext()).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == again
    return model


def test_a_network() -> None:
    model = run()
    assert ops(model) == ["Conv", "HardSigmoid", "Mul", "BatchNormalization", "Conv", "Relu", "Conv",
                          "GlobalAveragePool"]


@pytest.mark.parametrize("name", [p.name for p in ALGEBRA])
def test_any_pass_may_be_left_out(name: str) -> None:
    run((name,))
