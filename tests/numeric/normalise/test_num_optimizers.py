"""Steps of optimizers, written out, against ONNX's own reference, and served: which ONNX Runtime alone cannot do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from tests.unit.normalise.test_optimizers import ADAM, with_step
from tilegraph.passes import PassContext
from tilegraph.rewrites.normalise import ExpandFunctions
from tilegraph.verify import verify

NORM = {"norm_coefficient": 0.05}
MOMENTUM = {"alpha": 0.9, "beta": 0.5, **NORM}


def feeds_of(made: onnx.ModelProto, steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    kinds = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in made.graph.input}
    return {name: np.array(steps) if name == "T" else np.array(0.1, kind) if name == "R"
            else np.abs(rng.normal(size=(4, 5))).astype(kind) for name, kind in kinds.items()}


@pytest.mark.parametrize("steps", [0, 1, 1000])
@pytest.mark.parametrize(("op", "inputs", "outputs", "dtype", "attributes"), [
    ("Adam", "X0 G0 V0 H0", 3, "float", {**ADAM, **NORM, "norm_coefficient_post": 0.01}),
    ("Adam", "X0 X1 G0 G1 V0 V1 H0 H1", 6, "float", {"beta": 0.999, "epsilon": 1e-8}),
    ("Adam", "X0 G0 V0 H0", 1, "double", {}),
    ("Momentum", "X0 X1 G0 G1 V0 V1", 4, "float", {"mode": "standard", **MOMENTUM}),
    ("Momentum", "X0 G0 V0", 2, "float", {"mode": "nesterov", **MOMENTUM}),
    ("Adagrad", "X0 X1 G0 G1 H0 H1", 4, "float", {"decay_factor": 0.1, **NORM}),
])
def test_the_same_as_onnx_reference(op: str, inputs: str, outputs: int, dtype: str, attributes: dict[str, Any],
                                    steps: int) -> None:
    made = with_step(op, inputs, outputs, dtype=dtype, **attributes)
    original = ir.to_proto(made)
    feeds = feeds_of(original, steps)
    wanted = ReferenceEvaluator(original).run(None, feeds)
    assert ExpandFunctions().run(made, PassContext()).modified
    answers = ort.InferenceSession(ir.to_proto(made).SerializeToString(),
                                   providers=["CPUExecutionProvider"]).run(None, feeds)
    eps = 4 * np.finfo(answers[0].dtype).eps
    for want, have in zip(wanted, answers, strict=False):
        assert have.dtype == answers[0].dtype
        assert np.abs(want - have).max() <= eps * np.abs(want).max()


def test_verify_compares_with_what_the_step_means(tmp_path: Path) -> None:
    made = with_step("Adam", "X0 G0 V0 H0", 3, **ADAM)
    ir.save(made, tmp_path / "original.onnx")
    ExpandFunctions().run(made, PassContext())
    ir.save(made, tmp_path / "right.onnx")
    result = verify(tmp_path / "original.onnx", tmp_path / "right.onnx", samples=1)
    assert result.same
    assert any("no kernels for Adam" in note for note in result.notes)
    wrong = with_step("Adam", "X0 G0 V0 H0", 3, alpha=0.9, beta=0.98)
    ExpandFunctions().run(wrong, PassContext())
    ir.save(wrong, tmp_path / "wrong.onnx")
    assert not verify(tmp_path / "original.onnx", tmp_path / "wrong.onnx", samples=1).same
