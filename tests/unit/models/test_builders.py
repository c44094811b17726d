"""The builders without running them: valid graphs, the spelling they promise, sizes, the cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from models import builders
from models.builders.graph import Graph
from models.inputs import inputs_for


def _ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", builders.names())
def test_every_builder_passes_the_full_checker(name: str, dynamic: bool) -> None:
    model = builders.build(name, size="small", dynamic=dynamic)
    onnx.checker.check_model(model, full_check=True)
    free = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    assert bool(free) == dynamic
    names = [n.name for n in model.graph.node]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", builders.names())
def test_the_same_call_gives_the_same_bytes_and_another_seed_other_weights(name: str) -> None:
    first = builders.build(name, size="small").SerializeToString(deterministic=True)
    assert first == builders.build(name, size="small").SerializeToString(deterministic=True)
    assert first != builders.build(name, size="small", seed=1).SerializeToString(deterministic=True)


def test_bert_is_decomposed_by_default_and_fused_on_request() -> None:
    plain = _ops(builders.build("bert", size="small"))
    assert plain["Erf"] == 1
    assert plain["ReduceMean"] == 4
    assert not plain["LayerNormalization"]
    fused = _ops(builders.build("bert", size="small", fused=True))
    assert (fused["Gelu"], fused["LayerNormalization"], fused["Erf"], fused["ReduceMean"]) == (1, 2, 0, 0)


def test_llama_spells_rmsnorm_rope_silu_and_the_mask_from_primitive_ops() -> None:
    ops = _ops(builders.build("llama_gqa", size="small", layers=1))
    assert (ops["Sigmoid"], ops["Cos"], ops["Sin"], ops["Neg"]) == (1, 1, 1, 2)
    assert ops["ReduceMean"] == 3
    assert ops["Expand"] == 3  # the mask, and the keys and values of the groups
    assert ops["LessOrEqual"] == 1
    fused = _ops(builders.build("llama", size="small", fused=True))
    assert fused["RMSNormalization"] == 3


def test_a_dynamic_export_computes_its_shapes_in_the_graph() -> None:
    assert _ops(builders.build("bert", size="small"))["Shape"] == 0
    dynamic = _ops(builders.build("bert", size="small", dynamic=True))
    assert dynamic["Shape"] > 4
    assert dynamic["Concat"] >= 4


def test_resnet_and_mobilenet_have_the_published_layer_counts() -> None:
    resnet = builders.build("resnet50", width=8, image=32)  # all blocks, few channels
    assert _ops(resnet)["Conv"] == 53
    assert _ops(resnet)["Gemm"] == 1
    mobilenet = builders.build("mobilenetv2", image=32)
    assert _ops(mobilenet)["Conv"] == 52
    assert _ops(mobilenet)["Add"] == 10
    depthwise = [n for n in mobilenet.graph.node if n.op_type == "Conv"
                 and next(a.i for a in n.attribute if a.name == "group") > 1]
    assert len(depthwise) == 17
    kept = _ops(builders.build("resnet50", size="small", batch_norm=True))
    assert kept["BatchNormalization"] == kept["Conv"]


def test_vgg_and_the_detector_have_the_published_layer_counts() -> None:
    vgg = builders.build("vgg19", width=8, image=32, hidden=8)
    assert (_ops(vgg)["Conv"], _ops(vgg)["MaxPool"], _ops(vgg)["Gemm"]) == (16, 5, 3)
    detector = builders.build("yolo_n")
    ops = _ops(detector)
    assert (ops["Conv"], ops["Sigmoid"] - 1, ops["Resize"], ops["MaxPool"]) == (64, 57, 2, 3)
    weights = sum(int(np.prod(t.dims)) for t in detector.graph.initializer)
    assert 3.1e6 < weights < 3.2e6  # the published detector has 3.2 million parameters
    assert [d.dim_value for d in detector.graph.output[0].type.tensor_type.shape.dim] == [1, 84, 2100]
    with pytest.raises(ValueError, match="multiple of 32"):
        builders.build("yolo_n", image=100)
    with pytest.raises(ValueError, match="multiple of 32"):
        builders.build("vgg19", image=100)


def test_weights_have_a_realistic_scale() -> None:
    model = builders.build("bert", size="small", hidden=256, heads=4, ffn=512)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    query = weights["encoder.layer.0.attention.self.query.weight"]
    assert query.std() == pytest.approx(1 / 16, rel=0.05)
    gamma = next(v for k, v in weights.items() if k.endswith("LayerNorm.weight"))
    assert gamma.mean() == pytest.approx(1.0, abs=0.05)


def test_unknown_names_and_sizes_say_what_there_is() -> None:
    with pytest.raises(KeyError, match="there are: bert"):
        builders.build("berd")
    with pytest.raises(ValueError, match="'small' or 'full'"):
        builders.build("bert", size="big")
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        builders.build("llama", size="small", kv_heads=3)
    with pytest.raises(ValueError, match="context of 48"):
        builders.build("gpt2_prefill", size="small", seq=49)


def test_a_weight_name_is_used_once() -> None:
    g = Graph("g")
    g.weight("w", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="w is defined twice"):
        g.weight("w", np.zeros(1, np.float32))


def test_files_are_cached_by_sizes(tmp_path: Path) -> None:
    first = builders.path("bert", size="small", cache=tmp_path)
    stamp = first.stat().st_mtime_ns
    assert builders.path("bert", size="small", cache=tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert builders.path("bert", size="small", seq=8, cache=tmp_path) != first
    assert not list(tmp_path.glob(".tmp-*"))
    onnx.checker.check_model(str(first))


def test_large_weights_go_to_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.builders.registry.EXTERNAL_BYTES", 1000)
    path = builders.path("bert", size="small", cache=tmp_path)
    assert sorted(f.name for f in path.parent.iterdir()) == ["bert.onnx", "bert.onnx.data"]
    loaded, built = onnx.load(path), builders.build("bert", size="small")
    for a, b in zip(loaded.graph.initializer, built.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))


def test_inputs_respect_vocabularies_masks_and_sums_of_dims() -> None:
    model = builders.build("gpt2_decode", size="small", dynamic=True, embeddings=True)
    feeds = inputs_for(model, seed=1, dims={"batch": 3, "past": 8})
    assert feeds["attention_mask"].shape == (3, 9)
    assert set(np.unique(feeds["attention_mask"])) <= {0, 1}
    assert (np.diff(feeds["attention_mask"], axis=1) <= 0).all()  # ones, then padding
    assert 0 <= feeds["input_ids"].min() <= feeds["input_ids"].max() < 100
    assert feeds["past_key_values.1.key"].shape == (3, 4, 8, 16)
    with pytest.raises(KeyError, match="past"):
        inputs_for(model, dims={"batch": 3})
