"""Exported models: every attention that is counted by hand is found, and the folder answers as the framework did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import tilegraph
from tilegraph.compiler import optimize

# name: attentions in the source model; BigBird's first, second, last but one and last rows of blocks are others
MODELS = {
    "albert-ts17-eager-static": 2, "custom_causal_tril_fill-dy18-dyn": 1, "custom_sdpa_causal-dy18-static": 1,
    "timesformer-ts17-eager-static": 4, "vit-ts14-sdpa-batch": 2,
    "w2v_conformer-dy18-eager-static": 2, "whisper-dy18-sdpa-dyn-dec": 4,
    "whisper-ts17-eager-static-enc": 2, "bart-dy18-sdpa-dyn-dec": 4, "tf_block-tf17": 1,
    "xlnet-ts14-eager-static-hf4": 2, "reformer-dy18-eager-static": 2, "gpt_bigcode-ts14-eager-dyn-hf4": 2,
    "jax_block_mha-jax21": 1, "diffllama-dy18-eager-static": 2, "unet-dy23-static": 2, "sam-ts14-eager-static-hf4": 9,
    "custom_struct_channel-dy18-static": 1, "keras_encoder-tf18": 2, "tf_bert_pad-tf17": 1,
    "longformer-ts17-eager-static-oe": 2,
    "gpt2-ts14-eager-dyn-past-hf4": 2, "bigbird-ts17-eager-static": 10, "deberta_v2-opt14-eager-dyn": 2,
}


@pytest.mark.parametrize("name", list(MODELS))
def test_corpus(name: str, corpus: Path, tmp_path: Path) -> None:
    path = corpus / f"{name}.onnx"
    made = optimize(path, offload="all")
    assert sum(a["taken"] for a in made.summary.attentions) == MODELS[name]
    made.save(tmp_path / "m")
    tilegraph.register()
    session = ort.InferenceSession(str(tmp_path / "m" / "model.onnx"),
                                   providers=[tilegraph.EP_NAME, "CPUExecutionProvider"])
    arrays = np.load(corpus / f"{name}.npz")
    compared = 0
    names = {i.name for i in session.get_inputs()}
    for before, after in (("in_", "out_"), ("alt_in_", "alt_out_")):
        feeds = {k[len(before):]: arrays[k] for k in arrays.files if k.startswith(before)}
        if not feeds:
            continue
        results = session.run(None, {k: v for k, v in feeds.items() if k in names})
        wanted = {k[len(after):]: arrays[k] for k in arrays.files if k.startswith(after)}
        for output, got in zip(session.get_outputs(), results, strict=True):
            want = wanted.get(output.name)
            if want is None or want.dtype.kind != "f":
                continue
            compared += 1
            assert np.std(want) > 0
            assert np.abs(got - want).max() <= 1e-5 * max(1.0, float(np.abs(want).max()))
    assert compared
