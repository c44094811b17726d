"""Extents of 0: what a kernel reads once a row, the front of what it reduces, does not exist then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.numeric.conformance.conf_serve import parse, serve

MODELS = {
    "rows": "g (float[n, 5] x) => (float[a] y) { y = ReduceMax <keepdims = 0> (x, one) }",
    "columns": "g (float[n, 5] x) => (float[a] y, float[b] z) { y = ReduceMin <keepdims = 0> (x, zero) "
               "z = ReduceSum <keepdims = 0> (x, zero) }",
    "turned": "g (float[n, 5] x) => (float[a] y) { t = Transpose <perm = [1, 0]> (x) "
              "y = ReduceMax <keepdims = 0> (t, one) }",
    "all of it": "g (float[n, 5] x) => (float y) { e = Exp(x)  y = ReduceMax <keepdims = 0> (e) }",
    "half": "g (float16[n, 5] x) => (float16[a] y) { y = ReduceMin <keepdims = 0> (x, zero) }",
}


@pytest.mark.parametrize("name", MODELS)
def test_extremes_of_nothing(name: str, tmp_path: Path) -> None:
    served = serve(parse(MODELS[name], one=np.array([1]), zero=np.array([0])), tmp_path)
    assert served.kernels
    dtype = np.float16 if name == "half" else np.float32
    behind = np.full((3, 5), np.nan, dtype)  # what lies where the elements would be
    for feed in (behind[:0], np.arange(15, dtype=dtype).reshape(3, 5), behind):
        served.check(x=feed)
