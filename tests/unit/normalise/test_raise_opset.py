"""Old models with convolutions or pools are raised to opset 11; others are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from norm_check import ops, run

from tilegraph.io import load
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise.raise_opset import RaiseOpset

X = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)


def model(body: str, opset: int, more: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 4, opset_import: ["" : {opset}]> '
                                   f"g (float[1, 2, 5, 6] x{more}) => (float[n, c, h, w] y) {{ {body} }}")


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_raised_with_what_is_around(opset: int) -> None:
    body = ("a = MaxPool <kernel_shape = [2, 2]> (x)  b = Clip <min = -0.5, max = 0.5> (a)  "
            "y = Pad <pads = [0, 0, 1, 0, 0, 0, 0, 2]> (b)")
    after = run(RaiseOpset(), load(model(body, opset)), modified=True, feeds={"x": X})
    assert after.graph.opset_imports[""] == 11
    assert {"MaxPool", "Clip", "Pad"} <= set(ops(after))


@pytest.mark.parametrize(("body", "opset"), [("y = Clip <min = -0.5, max = 0.5> (x)", 9),
                                             ("y = GlobalAveragePool(x)", 11)])
def test_left_alone(body: str, opset: int) -> None:
    after = run(RaiseOpset(), load(model(body, opset)), modified=False)
    assert after.graph.opset_imports[""] == opset


def test_one_node_in_the_way() -> None:
    given = load(model("a = GlobalAveragePool(x)  y = Resize(a, s)", 10, ", float[4] s"))
    context = PassContext()
    RaiseOpset().run(given, context)
    assert given.graph.opset_imports[""] == 10
    (refused,) = context.diagnostics.refusals()
    assert refused.reason.startswith("opset 10 kept: Resize of opset 10 rounds differently")
