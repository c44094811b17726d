"""Extents of 0: what a kernel reads once a row, the front of what it reduces, does not exist then; nor do lines, or
windows of images that are smaller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
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


def convolutions(text: str) -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    return parse(text, v=rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
                 w=rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12)


def image(*shape: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(4).standard_normal(shape).astype(np.float32)}


def test_lines_of_no_elements(tmp_path: Path) -> None:
    """(w - 1) // 2 + 1 is 0 for w = 0: kernels that rounded towards 0 wrote one result a line behind their memory."""
    served = serve(convolutions("""g (float[n, 3, h, w] x) => (float[n, 16, a, b] y) {
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, v)  r = Relu(c)
        d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r, w)  y = Relu(d)
    }"""), tmp_path)
    assert served.kernels == 1
    for rows, columns in ((64, 0), (0, 64)):  # ONNX Runtime refuses both
        (y,) = served.session.run(None, image(2, 3, rows, columns))
        assert y.shape == (2, 16, rows // 4, columns // 4)
    served.check(**image(0, 3, 8, 8))
    served.check(**image(2, 3, 1, 9))


def test_pools_over_less_than_a_window(tmp_path: Path) -> None:
    """ONNX Runtime has one result for one element in a window of two; kernels refuse, and had a mean of nothing."""
    served = serve(convolutions("""g (float[n, 3, h, w] x) => (float[n, 16, 1, 1] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, v)  r = Relu(c)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)  y = GlobalAveragePool(p)
    }"""), tmp_path)
    assert served.kernels == 1
    with pytest.raises(Exception, match="differ for these input shapes"):
        served.session.run(None, image(1, 3, 8, 1))
    served.check(**image(1, 3, 3, 2))


def test_convolutions_over_less_than_a_window(tmp_path: Path) -> None:
    """ONNX Runtime refuses what has a mean of nothing here."""
    served = serve(convolutions("""g (float[n, 3, h, w] x) => (float[n, 16, 1, 1] y) {
        c = Conv (x, v)  r = Relu(c)  y = GlobalAveragePool(r)
    }"""), tmp_path)
    assert served.kernels == 1
    for session in (served.plain, served.session):
        with pytest.raises(Exception, match="input shape"):
            session.run(None, image(1, 3, 2, 8))
    served.check(**image(1, 3, 3, 8))
