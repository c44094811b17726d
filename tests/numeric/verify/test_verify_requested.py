"""A lower precision that was asked for: its error is the bound, and no more than its error is excused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilegraph.codegen.isa import host
from tilegraph.compiler import optimize
from tilegraph.spec.artifact import REPORT_FILE
from tilegraph.verify import verify

pytestmark = pytest.mark.skipif("avx512bf16" not in host().features, reason="this machine has no AVX512-BF16")


def layer(path: Path, wrong: float = 1.0) -> Path:
    """Two products with a Tanh between them; `wrong`: a factor of one column of the second matrix."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=s).astype(np.float32) * 0.1 for s in ((96, 128), (128, 64)))
    second[:, 5] *= wrong
    nodes = [helper.make_node("MatMul", ["x", "a"], ["t"]), helper.make_node("Tanh", ["t"], ["u"]),
             helper.make_node("MatMul", ["u", "b"], ["y"])]
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    original = layer(tmp_path / "m.onnx")
    folder = optimize(original, precision="bf16").save(tmp_path / "m.tilegraph")
    return {"original": original, "folder": folder, "tmp": tmp_path}


def test_its_error_is_the_bound(made: dict[str, Path]) -> None:
    result = verify(made["original"], made["folder"])
    (output,) = result.outputs
    assert result.same
    assert output.ort_error is not None
    assert output.requested_error is not None
    assert output.requested_error > 100 * output.ort_error
    assert output.atol == 2 * output.requested_error
    assert output.max_abs > 100 * output.ort_error, "nothing was rounded"
    assert any("precision bf16 was asked for" in note for note in result.notes)


def test_wrong_weights_are_not_excused(made: dict[str, Path]) -> None:
    wrong = optimize(layer(made["tmp"] / "wrong.onnx", 1.1), precision="bf16").save(made["tmp"] / "w.tilegraph")
    assert not verify(made["original"], wrong).same


def test_what_was_not_asked_for_is_not_excused(made: dict[str, Path]) -> None:
    path = made["folder"] / REPORT_FILE
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    report["options"]["precision"] = "float32"
    path.write_text(json.dumps(report), encoding="utf-8")
    result = verify(made["original"], made["folder"])
    assert not result.same
    assert result.outputs[0].requested_error is None


def test_a_precision_that_is_not_known_here_is_said(made: dict[str, Path]) -> None:
    path = made["folder"] / REPORT_FILE
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    report["options"]["mcpu"] = "haswell"
    path.write_text(json.dumps(report), encoding="utf-8")
    result = verify(made["original"], made["folder"])
    assert not result.same
    assert any("is not known" in note and "avx512bf16" in note for note in result.notes)
