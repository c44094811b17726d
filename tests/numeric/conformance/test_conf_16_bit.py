"""Every float16 there is through every pointwise operator of one operand: NaN, infinities, zeros, subnormals included.

The reference is ONNX Runtime without optimizations in float32, rounded to float16 at the end, which is how it computes
float16 where it has no kernel of its own, and how ours do. Bound: NaN and infinities where the reference has them,
the sign of zeros as well, everything else within one step of float16, or within 8 eps of float32 at the size of the
argument (at least 1): the tails of GELU and Sigmoid are small differences of numbers near 1, in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import tilegraph.runtime as runtime
from tilegraph.compiler import optimize
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.spec.artifact import EP_NAME

OPSET = 24
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
OPERATORS = sorted(name for (domain, name), op in POINTWISE.items()
                   if domain == "" and op.arity == (1, 1) and op.accepts(["float32"], {}, OPSET) is None
                   and name not in ("Cast", "CastLike", "Identity"))


def graph(operators: list[str], dtype: int) -> onnx.ModelProto:
    nodes, outputs = [], []
    for name in operators:
        nodes.append(helper.make_node(name, ["x"], [f"y_{name}"], name=f"n_{name}"))
        kind = TensorProto.BOOL if name in ("IsNaN", "IsInf") else dtype
        outputs.append(helper.make_tensor_value_info(f"y_{name}", kind, ["n", 64]))
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, ["n", 64])], outputs)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def reference(operators: list[str]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = graph(operators, TensorProto.FLOAT).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": EVERY.reshape(-1, 64).astype(np.float32)})
    with np.errstate(over="ignore"):
        return {k: v if v.dtype == np.bool_ else v.astype(np.float16) for k, v in zip(operators, found, strict=True)}


def ordered(values: Any) -> Any:
    """Integers that count the steps of float16, both zeros at 0."""
    bits = values.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("start", range(0, len(OPERATORS), 8))
def test_every_float16(start: int, tmp_path: Path) -> None:
    operators = OPERATORS[start:start + 8]
    made = optimize(graph(operators, TensorProto.FLOAT16), offload="all")
    assert made.summary.engines.get(EP_NAME), "nothing was compiled"
    assert "onnxruntime" not in made.summary.engines, made.summary.refusals
    session = runtime.session(made.save(tmp_path / "m.tilegraph"), threads=1)
    found = dict(zip(operators, session.run(None, {"x": EVERY.reshape(-1, 64)}), strict=True))
    for name, wanted in reference(operators).items():
        given = found[name]
        if wanted.dtype == np.bool_:
            np.testing.assert_array_equal(given, wanted, err_msg=name)
            continue
        np.testing.assert_array_equal(np.isnan(given), np.isnan(wanted), err_msg=f"{name}: NaN")
        argument = np.maximum(1, np.abs(np.nan_to_num(EVERY.astype(np.float64)))).reshape(wanted.shape)
        with np.errstate(invalid="ignore"):
            near = np.abs(given.astype(np.float64) - wanted) <= 8 * np.finfo(np.float32).eps * argument
        steps = np.where(np.isnan(wanted) | near, 0, np.abs(ordered(given) - ordered(wanted)))
        at = int(np.argmax(steps))
        assert steps.max() <= 1, (f"{name}({EVERY[at]!r}) is {given.reshape(-1)[at]!r}, ONNX Runtime says "
                                  f"{wanted.reshape(-1)[at]!r}")
        zeros = (given == 0) & (wanted == 0)
        np.testing.assert_array_equal(np.signbit(given)[zeros], np.signbit(wanted)[zeros], err_msg=f"{name}: zeros")


def test_the_operators_are_most_of_the_table() -> None:
    assert len(OPERATORS) > 30, OPERATORS
