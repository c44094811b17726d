"""Each peer that is installed runs, gives the original's answers and is timed; those that are not are skipped by name.

The interpreter of `make bench-peers` is used where it is there.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilegraph.bench import Peer, bench
from tilegraph.bench.kinds import KINDS, PYTHON_VARIABLE, Found, find
from tilegraph.bench.rivals import rivals

_OWN = Path(__file__).resolve().parents[3] / "build" / "venv-peers" / "bin" / "python"
RNG = np.random.default_rng(0)
WIDTH = 96
FEEDS = {"x": RNG.standard_normal((4, WIDTH)).astype(np.float32)}


def _installed(name: str) -> Found:
    python = os.environ.get(PYTHON_VARIABLE) or (str(_OWN) if _OWN.exists() else None)
    (found,) = find([name], python)
    if found.absent:
        pytest.skip(str(found))
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """softmax(x W + b) * 2, rows open."""
    weights = [numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)
               for name, shape in (("w", (WIDTH, WIDTH)), ("b", (WIDTH,)))]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["s"]),
             helper.make_node("Softmax", ["s"], ["m"], axis=-1), helper.make_node("Mul", ["m", "two"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", WIDTH]) for n in ("x", "y"))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y], [*weights, two]), ir_version=9,
                                opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("name", [kind.name for kind in KINDS.values() if kind.general])
def test_an_installed_peer_is_right_and_timed(name: str, model: Path, tmp_path: Path) -> None:
    (one,) = rivals(model, FEEDS, [_installed(name)], tmp_path / "cache")
    assert one.reason == ""
    assert one.peer is not None
    assert one.error < 1e-5
    result = bench([Peer("ONNX Runtime", model), one.peer], runs=2, inputs=FEEDS)
    timing = result.models[1]
    assert timing.median_s > 0
    assert np.isnan(timing.create_s)
    assert timing.provider == ("openvino" if name.startswith("openvino") else "CPUExecutionProvider")
    assert result.best_but(0) == 1
    assert result.versus(1, 0).median == pytest.approx(timing.ratio)


def test_openvino_in_bfloat16_has_wrong_answers(model: Path, tmp_path: Path) -> None:
    if "avx512_bf16" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        pytest.skip("the CPU has no bfloat16 products")
    python = _installed("openvino").python
    low = Peer("bf16", model, engine="openvino", python=python, options={"INFERENCE_PRECISION_HINT": "bf16"})
    (one,) = rivals(model, FEEDS, [], tmp_path, [low])
    assert one.peer is None
    assert one.reason.startswith("wrong answers: output 0 is")


@pytest.mark.parametrize("mask", ["full", "causal", "window", "documents", "decode"])
def test_scaled_dot_product_attention_computes_the_exported_graph(mask: str, tmp_path: Path) -> None:
    from models.attention import Attention
    from models.attention_peers import special

    found = _installed("torch-sdpa")
    case = Attention("small", 128, mask, window=16)
    onnx.save(case.model(), tmp_path / "a.onnx")
    entries = rivals(tmp_path / "a.onnx", case.inputs(), [], tmp_path, special(case, [found], tmp_path / "files"))
    (sdpa,) = [one for one in entries if one.name == "torch-sdpa"]
    assert sdpa.reason == ""
    assert sdpa.error < 1e-5


@pytest.mark.parametrize("mask", ["full", "causal", "window", "documents", "blocks", "decode"])
def test_onnx_runtimes_own_attention_computes_the_exported_graph(mask: str, tmp_path: Path) -> None:
    from models.attention import Attention
    from models.attention_peers import special

    case = Attention("small", 192, mask, window=16, density=0.3)
    onnx.save(case.model(), tmp_path / "a.onnx")
    entries = rivals(tmp_path / "a.onnx", case.inputs(), [], tmp_path, special(case, [], tmp_path / "files"))
    expected = {"decode": {"Attention", "GroupQueryAttention"}}.get(
        mask, {"MultiHeadAttention", *({"GroupQueryAttention"} if mask in ("causal", "window") else ())})
    assert {one.name for one in entries} == expected
    assert [one.reason for one in entries if one.reason] == []
    assert all(one.error < 1e-5 for one in entries)


def test_an_attention_that_computes_something_else_is_found(tmp_path: Path) -> None:
    from models.attention import Attention
    from models.attention_peers import special

    window, causal = Attention("window", 128, "window", window=16), Attention("causal", 128, "causal")
    onnx.save(causal.model(), tmp_path / "a.onnx")
    entries = rivals(tmp_path / "a.onnx", causal.inputs(), [], tmp_path, special(window, [], tmp_path / "files"))
    assert entries
    assert all(one.peer is None and one.reason.startswith("wrong answers") for one in entries)
