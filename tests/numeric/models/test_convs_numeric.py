"""What `python -m models.convs` times is the convolution that it names."""

from __future__ import annotations

import numpy as np
import pytest

from models.convs import Shape, table, timed
from tilegraph.codegen.isa import host


@pytest.mark.skipif(host().vector_bits < 512, reason="this machine has no AVX-512")
def test_a_kernel_alone() -> None:
    case = timed(Shape(16, 16, 3, 5), host())
    case.run()
    x, weights, bias, result = (case.memory[k].reshape(-1)[:n] for k, n in ((0, 240), (1, 256), (2, 16), (3, 240)))
    pairs = weights.reshape(8, 16, 2)  # of one panel: [pair of channels][filter][even or odd channel]
    want = np.maximum(x.reshape(15, 16) @ pairs.swapaxes(1, 2).reshape(16, 16) + bias, 0)
    assert want.std() > 1
    np.testing.assert_allclose(result.reshape(15, 16), want, atol=1e-5)
    assert case.flop == 2 * 15 * 16 * 16
    assert table([case], case.flop, [(2.0, 1.0)])[-1] == "| 1x1 16-16 @3x5 | direct | 2000000 | 0.50 | 0.50 |"
