"""Quotients that are rounded or compared are exact; others may go through a reciprocal."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from tests.numeric.codegen.runner import run_region
from tilegraph.io import load
from tilegraph.ops.lower import lower_region, prims_of
from tilegraph.ops.prims import Point
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise.shapes import Shapes

# 41 * float32(1 / 41) < 1: floors, ceilings and comparisons of multiples of 41 show a reciprocal.
BODIES = {
    "floor": "d = Div(x, c) y = Floor(d)",
    "ceil of a negative": "n = Neg(x) d = Div(n, c) y = Ceil(d)",
    "round of a half": "d = Div(x, c) e = Add(d, h) y = Round(e)",
    "cast": "d = Div(x, c) i = Cast <to = 7> (d) y = Cast <to = 1> (i)",
    "compare": "d = Div(x, c) b = Less(d, o) y = Where(b, x, o)",
    "bounded, moved": "d = Div(x, c) m = Clip(d, o) t = Transpose <perm = [1, 0]> (m) f = Floor(t) y = Sqrt(f)",
    "of a row": "p = ReduceMax <axes = [1]> (x) d = Div(x, p) y = Floor(d)",
}


def model(body: str) -> Any:
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[8, 41] x) => (float[a, b] y)
        <float c = {{41.0}}, float h = {{0.5}}, float o = {{1.0}}> {{ {body} }}""")


def region(body: str) -> ir.Graph:
    loaded = load(model(body))
    Shapes().run(loaded, PassContext())
    return loaded.graph


@pytest.mark.parametrize("name", list(BODIES))
def test_steps(name: str) -> None:
    graph = region(BODIES[name])
    x = (np.arange(8 * 41) * np.where(np.arange(8 * 41) % 2, 1, 41)).astype(np.float32).reshape(8, 41)
    if name == "of a row":
        x = np.full((8, 41), 1, np.float32) * np.array([41, 47, 55, 61, 82, 83, 94, 97], np.float32)[:, None]
    (got,), _, _ = run_region(list(graph), list(graph.outputs), {"x": x}, opset=17)
    (want,) = ort.InferenceSession(model(BODIES[name]).SerializeToString(),
                                   providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert np.std(want) > 0 or name == "of a row"
    np.testing.assert_allclose(got, want, rtol=0)


@pytest.mark.parametrize("body", ["d = Div(x, c) y = Exp(d)", "d = Div(x, o) y = Floor(d)"])
def test_what_stays_a_product(body: str) -> None:
    """Nothing steps, or the reciprocal of a power of two is exact."""
    graph = region(body)
    lowered = lower_region(list(graph), list(graph.outputs), {"": 17})
    keys = {p.key.partition("<")[0] for p in prims_of(lowered) if isinstance(p, Point)}
    assert "Mul" in keys
    assert "quotient" not in keys
