"""The built models run in ONNX Runtime and compute what their names say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from models import builders
from models.builders.spelling import inverse_frequencies
from models.inputs import inputs_for

Array = npt.NDArray[Any]
DECODERS = ["llama", "llama_gqa", "llama_window", "gpt2_prefill"]


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _alive(outputs: list[Array]) -> None:
    for output in outputs:
        assert np.isfinite(output).all()
        assert output.std() > 1e-3


@pytest.mark.parametrize("name", builders.names())
def test_runs_with_finite_varied_outputs_static_and_dynamic(name: str) -> None:
    model = builders.build(name, size="small")
    outputs = run(model, inputs_for(model))
    _alive(outputs)
    dynamic = builders.build(name, size="small", dynamic=True)
    example = dict(builders.builder(name).example)
    for change in (0, 1):
        dims = {k: v + change for k, v in example.items()}
        results = run(dynamic, inputs_for(dynamic, dims=dims))
        _alive(results)
        assert results[0].shape[0] == dims.get("batch", 1)


@pytest.mark.parametrize("name", builders.names())
def test_a_dynamic_export_gives_the_answers_of_the_static_one(name: str) -> None:
    static = builders.build(name, size="small")
    dynamic = builders.build(name, size="small", dynamic=True)
    feeds = inputs_for(static)
    for a, b in zip(run(static, feeds), run(dynamic, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", builders.names())
def test_the_answer_depends_on_the_input(name: str) -> None:
    model = builders.build(name, size="small")
    first, second = (run(model, inputs_for(model, seed=i))[0] for i in (1, 2))
    assert np.abs(first - second).mean() > 0.05 * first.std()


@pytest.mark.parametrize("name", ["bert", "bert_embeddings", "llama_gqa", "gpt2_prefill", "gpt2_decode", "window"])
def test_the_fused_spelling_gives_the_same_answers(name: str) -> None:
    plain, fused = (builders.build(name, size="small", fused=f) for f in (False, True))
    feeds = inputs_for(plain)
    for a, b in zip(run(plain, feeds), run(fused, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
def test_images_of_other_sizes_run_when_the_export_leaves_them_open(name: str) -> None:
    model = builders.build(name, size="small", dynamic=True, image="side")
    _alive(run(model, inputs_for(model, dims={"batch": 2, "height": 40, "width": 56})))
    kept = builders.build(name, size="small", batch_norm=True)
    _alive(run(kept, inputs_for(kept)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_a_later_token_never_changes_an_earlier_row(name: str, dynamic: bool) -> None:
    model = builders.build(name, size="small", dynamic=dynamic, embeddings=False)
    feeds = inputs_for(model, dims={"batch": 1, "seq": 16})
    feeds["attention_mask"][:] = 1
    before = run(model, feeds)[0]
    changed = {**feeds, "hidden_states": feeds["hidden_states"].copy()}
    changed["hidden_states"][:, 9] *= -1.0  # adding a constant would not pass a LayerNorm
    after = run(model, changed)[0]
    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert np.abs(before[:, 9:10] - after[:, 9:10]).max() > 1e-3
    assert np.abs(before[:, 10] - after[:, 10]).max() > 1e-6  # and the next row does see it


def _reach(name: str, **sizes: Any) -> set[int]:
    """Rows of the output that depend on token 8, in a one-layer model."""
    model = builders.build(name, size="small", **sizes)
    feeds = inputs_for(model)
    feeds["attention_mask"][:] = 1
    before = run(model, feeds)[0]
    feeds["hidden_states"][:, 8] = -feeds["hidden_states"][:, 8]
    after = run(model, feeds)[0]
    return {int(i) for i in np.nonzero(np.abs(before - after).max((0, 2)) > 1e-7)[0]}


def test_windows_reach_as_far_as_they_say() -> None:
    assert _reach("llama_window", window=5) == set(range(8, 13))
    assert _reach("llama") == set(range(8, 16))
    assert _reach("window", reach=3, global_tokens=0) == set(range(5, 12))
    assert _reach("window", reach=3, global_tokens=2) == {0, 1, *range(5, 12)}
    assert _reach("window", reach=3, global_tokens=9) == set(range(16))
    assert _reach("mistral", window=3) == set(range(8, 11))
    assert _reach("longformer", reach=4, global_tokens=2) == {0, 1, *range(4, 13)}
    assert _reach("longformer", reach=8, global_tokens=8) == {*range(17)}
    seen = _reach("bigbird", block=4)
    assert seen >= {*range(16), *range(32, 40)}  # neighbours, and the two blocks at each end
    assert len(seen) < 40


@pytest.mark.parametrize("name", ["bert", "window", "longformer", "bigbird", "mistral", *DECODERS])
def test_padding_is_not_seen(name: str) -> None:
    sizes = {"embeddings": False} if name == "llama_gqa" else {}
    model = builders.build(name, size="small", **sizes)
    feeds = inputs_for(model)
    feeds["attention_mask"][:] = 1
    full = run(model, feeds)[0]
    feeds["attention_mask"][:, 4:6] = 0
    before = run(model, feeds)[0]
    feeds["hidden_states"][:, 4:6] *= -1.0
    after = run(model, feeds)[0]
    rows = [i for i in range(16) if i not in (4, 5)]
    np.testing.assert_array_equal(before[:, rows], after[:, rows])
    assert np.abs(full - before).max() > 1e-3


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("embeddings", [False, True])
def test_a_decode_step_equals_the_last_row_of_prefill(dynamic: bool, embeddings: bool) -> None:
    sizes = {"layers": 2, "embeddings": embeddings}
    whole = builders.build("gpt2_prefill", size="small", seq=10, **sizes)
    prefix = builders.build("gpt2_prefill", size="small", seq=9, **sizes)
    step = builders.build("gpt2_decode", size="small", dynamic=dynamic, **({} if dynamic else {"past": 9}), **sizes)
    feeds = inputs_for(whole)
    feeds["attention_mask"][:] = 1
    feeds["attention_mask"][:, 2] = 0  # a padded token in the middle of the past
    token = next(k for k in feeds if k in ("hidden_states", "input_ids"))
    expected = run(whole, feeds)
    past = run(prefix, {token: feeds[token][:, :9], "attention_mask": feeds["attention_mask"][:, :9]})
    names = [v.name for v in step.graph.input if v.name.startswith("past")]
    got = run(step, {token: feeds[token][:, 9:], "attention_mask": feeds["attention_mask"],
                     **dict(zip(names, past[1:], strict=True))})
    np.testing.assert_allclose(got[0][:, 0], expected[0][:, 9], rtol=1e-4, atol=1e-5)
    for a, b in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def _weights(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}


def _rotate(x: Array, head: int) -> Array:
    """RoPE as rotations of complex pairs (d, d + head/2): [..., S, head]."""
    pairs = x[..., :head // 2] + 1j * x[..., head // 2:]
    angles = np.arange(x.shape[-2])[:, None] * inverse_frequencies(head).astype(np.float64)
    turned = pairs * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def test_a_llama_layer_with_grouped_heads_matches_numpy() -> None:
    model = builders.build("llama", size="small", kv_heads=2)
    w, feeds = _weights(model), inputs_for(model, seed=5)
    hidden, heads, kv, head, seq = 64, 4, 2, 16, 16
    x = feeds["hidden_states"].astype(np.float64)

    def rms(value: Array, weight: str) -> Array:
        return w[weight] * value / np.sqrt((value**2).mean(-1, keepdims=True) + 1e-6)

    prefix = "model.layers.0."
    y = rms(x, prefix + "input_layernorm.weight")

    def project(part: str, count: int) -> Array:
        return (y @ w[f"{prefix}self_attn.{part}.weight"]).reshape(1, seq, count, head).transpose(0, 2, 1, 3)

    q = _rotate(project("q_proj", heads), head)
    k = np.repeat(_rotate(project("k_proj", kv), head), heads // kv, 1)
    v = np.repeat(project("v_proj", kv), heads // kv, 1)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(head)
    keep = np.tril(np.ones((seq, seq), bool)) & (feeds["attention_mask"][:, None, None, :] > 0)
    scores = np.where(keep, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    context = (p @ v).transpose(0, 2, 1, 3).reshape(1, seq, hidden)
    x = x + context @ w[prefix + "self_attn.o_proj.weight"]
    y = rms(x, prefix + "post_attention_layernorm.weight")
    gate = y @ w[prefix + "mlp.gate_proj.weight"]
    gated = gate / (1 + np.exp(-gate)) * (y @ w[prefix + "mlp.up_proj.weight"])
    x = x + gated @ w[prefix + "mlp.down_proj.weight"]
    np.testing.assert_allclose(run(model, feeds)[0], rms(x, "model.norm.weight"), rtol=1e-4, atol=1e-5)


def test_a_bert_layer_matches_numpy() -> None:
    model = builders.build("bert", size="small")
    w, feeds = _weights(model), inputs_for(model, seed=2)
    x = feeds["hidden_states"].astype(np.float64)

    def dense(value: Array, name: str) -> Array:
        return value @ w[f"encoder.layer.0.{name}.weight"] + w[f"encoder.layer.0.{name}.bias"]

    def norm(value: Array, name: str) -> Array:
        centred = value - value.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * w[f"encoder.layer.0.{name}.weight"] + w[f"encoder.layer.0.{name}.bias"]

    q, k, v = (dense(x, f"attention.self.{n}").reshape(1, 16, 4, 16).transpose(0, 2, 1, 3)
               for n in ("query", "key", "value"))
    scores = np.where(feeds["attention_mask"][:, None, None, :] > 0, q @ k.swapaxes(-1, -2) / 4, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    context = (p @ v).transpose(0, 2, 1, 3).reshape(1, 16, 64)
    x = norm(dense(context, "attention.output.dense") + x, "attention.output.LayerNorm")
    y = dense(x, "intermediate.dense")
    y = 0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))
    expected = norm(dense(y, "output.dense") + x, "output.LayerNorm")
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("constants", [0, 1, 30])
def test_the_overhead_model_depends_on_every_region(constants: int) -> None:
    from models.overhead import overhead_model

    model = overhead_model(constants, nodes=3)
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32)}
    with_regions = run(model, feeds)[0]
    without = run(overhead_model(constants, nodes=3, regions=False), feeds)[0]
    assert np.isfinite(with_regions).all()
    assert np.abs(with_regions - without).max() > 0.1
    assert len(model.graph.initializer) == 1 + constants


def test_the_overhead_model_alternates_kernels_and_what_stays_with_onnx_runtime() -> None:
    from models.overhead import overhead_model
    from tilegraph.compiler import optimize

    compiled = optimize(overhead_model(2, nodes=3), offload="all").model
    assert [n.op_type for n in compiled.graph] == ["EPContext", "ScatterElements"] * 3
