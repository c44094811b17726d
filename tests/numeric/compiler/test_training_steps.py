"""Training steps as PyTorch exports them (tools/export_training_steps.py): what becomes of them, and their answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.numeric.compiler.served import Array, plain, reference, served
from tilegraph.compiler import optimize

STEPS = Path(__file__).resolve().parents[2] / "data" / "training"
# The most nodes that may be left to ONNX Runtime (products, Transposes, Reshapes, and sizes, mostly) of how many.
LEFT = {"mlp_sgd": (14, 83), "mlp_accumulate": (17, 77), "mlp_adamw": (14, 189), "bert_sgd": (53, 228),
        "gpt_sgd": (45, 260), "lora_adamw": (19, 124), "cnn_sgd": (30, 122), "lstm_adamw": (30, 276)}
CLASSES = {"mlp": 10, "bert": 5, "gpt": 40, "lora": 16, "cnn": 10, "lstm": 5}


def load(name: str) -> onnx.ModelProto:
    return onnx.load(STEPS / f"{name}.onnx")


def feeds_of(name: str, model: onnx.ModelProto, batch: int) -> dict[str, Array]:
    """Parameters and gradients of either sign; averages of squares, variances, masks and the rate are not negative."""
    rng = np.random.default_rng(7)
    made: dict[str, Array] = {}
    for value in model.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        shape = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
        if kind == np.int64:
            made[value.name] = rng.integers(0, CLASSES[name.split("_")[0]], shape)
        elif not shape:
            made[value.name] = np.array(0.1 if value.name == "lr" else 3.0, kind)
        elif value.name.endswith((".v", "_var")) or (name, value.name) == ("bert_sgd", "x1"):
            made[value.name] = rng.uniform(0.5, 1.5, shape).astype(kind)
        else:
            made[value.name] = (rng.normal(size=shape) * 0.3).astype(kind)
    return made


def agree(ours: list[Array], theirs: list[Array], steps: int) -> None:
    """Within `steps` units of float32 at the largest magnitude of each result, of which none is constant."""
    assert len(ours) == len(theirs) > 1
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.isfinite(b).all()
        assert b.size == 1 or np.ptp(b) > 0
        assert np.abs(a.astype(np.float64) - b).max() <= steps * 2.0**-23 * np.abs(b).max()


@pytest.mark.parametrize("name", LEFT)
def test_a_step_is_a_few_kernels_and_products(name: str) -> None:
    model = load(name)
    made = optimize(model, dry_run=True)
    left, before = LEFT[name]
    assert made.summary.nodes_before == before
    assert made.summary.engines["onnxruntime"] <= left
    assert not [r for r in made.summary.refusals if "is unknown" in r["reason"] and r["stage"] == "fusion"]
    feeds = feeds_of(name, model, 5)
    agree(plain(made.portable, feeds), reference(model, feeds), 32)


def test_served_at_two_batches() -> None:
    model = load("mlp_adamw")
    made = optimize(model)
    for batch in (1, 7):
        feeds = feeds_of("mlp_adamw", model, batch)
        agree(served(made, feeds), reference(model, feeds), 32)
