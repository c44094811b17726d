"""Attention in skewed chunks as a kernel: the answers of the export in ONNX Runtime, with and without padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import tilegraph
from tests.unit.attention.attn_support import fused
from tests.unit.attention.test_attn_skew import small
from tilegraph.compiler import optimize

# Kernels of what is around an attention take most of the time to compile, and say nothing about it.
OTHERS = ("fuse-regions", "absorb-leftovers", "fuse-gemm")


@pytest.mark.parametrize("spelling", ["built", "longformer-ts14-eager-batch"])
def test_answers(spelling: str, corpus: Path, tmp_path: Path) -> None:
    """The export reads rows of other heads than the framework does: what counts is what it computes."""
    path = corpus / f"{spelling}.onnx"
    built = spelling == "built"
    if built:
        path = tmp_path / "built.onnx"
        onnx.save(small(batch="batch"), path)
    made = optimize(path, offload="all", disable=OTHERS)
    assert [a["taken"] for a in made.summary.attentions] == [True] * (1 if built else 2)
    made.save(tmp_path / "m")
    tilegraph.register()
    served = ort.InferenceSession(str(tmp_path / "m" / "model.onnx"),
                                  providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    original = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    shapes = {i.name: [3 if isinstance(d, str) else d for d in i.shape] for i in original.get_inputs()}
    feeds = {n: np.ones(shape, np.int64) if "mask" in n else rng.integers(2, 90, shape) if "ids" in n
             else rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    seq = feeds["attention_mask"].shape[1]
    for lengths in ((seq, seq), (seq - 7, 3)):
        for row, length in enumerate(lengths):
            feeds["attention_mask"][row, length:] = 0
        want, got = (s.run(None, feeds)[0] for s in (original, served))
        assert np.std(want) > 1e-2
        assert np.abs(got - want).max() <= 4e-6 * float(np.abs(want).max())


def test_an_infinite_value_stays_within_its_reach(tmp_path: Path) -> None:
    """Keys and values of a block are those that its product reads: NaN spreads exactly as far as in the export."""
    onnx.save(small(batch=1), tmp_path / "a.onnx")
    made = optimize(tmp_path / "a.onnx", offload="all", disable=OTHERS)
    made.save(tmp_path / "m")
    tilegraph.register()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 32)).astype(np.float32)
    x[0, 9, 3] = np.inf
    feeds = {"hidden_states": x, "attention_mask": np.ones((1, 32), np.int64)}
    feeds["attention_mask"][0, 12:18] = 0
    want, got = (ort.InferenceSession(str(m), providers=p).run(None, feeds)[0] for m, p in (
        (tmp_path / "a.onnx", ["CPUExecutionProvider"]),
        (tmp_path / "m" / "model.onnx", [tilegraph.EP_NAME, "CPUExecutionProvider"])))
    assert 0 < np.isnan(want).all(-1).sum() < 32
    assert (np.isnan(got) == np.isnan(want)).all()


def test_scales_behind_the_product_and_a_result_that_is_an_output() -> None:
    model = small(batch=1)
    nodes = model.graph.node
    product = next(n for n in nodes if n.op_type == "Einsum")
    last = [n for n in nodes if n.op_type == "Einsum"][-1]
    raw = f"{product.output[0]}_raw"
    place = list(nodes).index(product) + 1
    nodes.insert(place, onnx.helper.make_node("Mul", [raw, "three"], [product.output[0]], "scale"))
    product.output[0] = raw
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3.0], np.float32), "three"))
    model.graph.output.append(onnx.helper.make_tensor_value_info(last.output[0], onnx.TensorProto.FLOAT, [4, 8, 4, 8]))
    after, decisions = fused(model)
    assert [d.taken for d in decisions] == [True], [d.reason for d in decisions]
    rng = np.random.default_rng(0)
    feeds = {"hidden_states": rng.standard_normal((1, 32, 32)).astype(np.float32),
             "attention_mask": np.ones((1, 32), np.int64)}
    want, got = (ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
                 for m in (model, ir.to_proto(after)))
    for a, b in zip(want, got, strict=True):
        assert np.std(a) > 1e-2
        assert np.abs(a - b).max() <= 4e-6 * float(np.abs(a).max())
