"""The built models by name, with their small and full sizes, and a cache of them on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from models.builders.bert import bert
from models.builders.gpt2 import gpt2
from models.builders.int4 import blocks
from models.builders.llama import llama
from models.builders.local import bigbird, longformer
from models.builders.mobilenet import mobilenet
from models.builders.resnet import resnet
from models.builders.skewed import longformer_chunks
from models.builders.vgg import vgg
from models.builders.window import window
from models.builders.yolo import yolo

CACHE = Path(__file__).resolve().parents[2] / "build" / "models"
EXTERNAL_BYTES = 64 << 20  # models with more weights than this are saved with one external data file


@dataclass(frozen=True)
class Builder:
    """`make(**sizes)` gives the model. `small` runs in milliseconds, `full` is what the benchmarks use; `dynamic`
    replaces extents by symbolic names, and `example` binds those names for a run at the small size."""

    name: str
    make: Callable[..., onnx.ModelProto]
    full: Mapping[str, Any]
    small: Mapping[str, Any]
    dynamic: Mapping[str, str]
    example: Mapping[str, int] = field(default_factory=dict)

    def sizes(self, size: str, dynamic: bool, overrides: Mapping[str, Any]) -> dict[str, Any]:
        if size not in ("small", "full"):
            raise ValueError(f"size is 'small' or 'full', not {size!r}")
        chosen = {**self.full, **(self.small if size == "small" else {})}
        return {**chosen, **(self.dynamic if dynamic else {}), **overrides}


_TOKENS = {"batch": "batch", "seq": "seq"}
_TINY = {"hidden": 64, "heads": 4, "seq": 16}
_RUN = {"batch": 2, "seq": 11}

_ALL = [
    Builder("bert", bert, {"seq": 128}, {**_TINY, "ffn": 128, "vocab": 100}, _TOKENS, _RUN),
    Builder("bert_embeddings", bert, {"seq": 128, "embeddings": True, "layers": 4},
            {**_TINY, "ffn": 128, "vocab": 100, "layers": 2}, _TOKENS, _RUN),
    Builder("llama", llama, {"seq": 512}, {**_TINY, "ffn": 96, "vocab": 100}, _TOKENS, _RUN),
    Builder("llama_gqa", llama, {"seq": 128, "kv_heads": 4, "embeddings": True, "layers": 2},
            {**_TINY, "ffn": 96, "vocab": 100, "kv_heads": 2}, _TOKENS, _RUN),
    Builder("llama_window", llama, {"seq": 4096, "window": 256}, {**_TINY, "ffn": 96, "window": 5}, _TOKENS, _RUN),
    Builder("mistral", llama, {"seq": 4096, "window": 1024, "kv_heads": 3},
            {**_TINY, "ffn": 96, "window": 5, "kv_heads": 2}, _TOKENS, _RUN),
    Builder("longformer", longformer, {}, {"hidden": 64, "heads": 4, "seq": 32, "ffn": 96, "reach": 4,
                                           "global_tokens": 2}, {"batch": "batch"}, {"batch": 2}),
    Builder("longformer_chunks", longformer_chunks, {}, {"hidden": 64, "heads": 4, "seq": 32, "ffn": 96, "reach": 4},
            {"batch": "batch"}, {"batch": 2}),
    Builder("bigbird", bigbird, {}, {"hidden": 64, "heads": 4, "seq": 40, "ffn": 96, "block": 4, "random_blocks": 2},
            {"batch": "batch"}, {"batch": 2}),
    Builder("gpt2_prefill", gpt2, {"seq": 512}, {**_TINY, "vocab": 100, "context": 48}, _TOKENS, _RUN),
    Builder("gpt2_decode", gpt2, {"seq": 1, "past": 511, "layers": 4},
            {**_TINY, "seq": 1, "past": 15, "layers": 2, "vocab": 100, "context": 48},
            {"batch": "batch", "past": "past"}, {"batch": 2, "past": 9}),
    Builder("blocks", blocks, {}, {"hidden": 64, "ffn": 96, "layers": 2, "seq": 5}, _TOKENS, _RUN),
    Builder("resnet50", resnet, {}, {"image": 32, "width": 8, "blocks": (1, 2, 1, 1), "classes": 10},
            {"batch": "batch"}, {"batch": 2}),
    Builder("mobilenetv2", mobilenet, {}, {"image": 32, "width": 0.25, "classes": 10},
            {"batch": "batch"}, {"batch": 2}),
    Builder("vgg19", vgg, {}, {"image": 32, "width": 8, "stages": ((1, 1), (2, 2), (2, 4)), "hidden": 32,
                               "classes": 10}, {"batch": "batch"}, {"batch": 2}),
    Builder("yolo_n", yolo, {}, {"image": 64, "width": 8, "depth": (1, 1, 1, 1), "classes": 5}, {"batch": "batch"},
            {"batch": 2}),
    Builder("window", window, {"seq": 2048, "global_tokens": 2}, {**_TINY, "ffn": 128, "reach": 3, "global_tokens": 2},
            _TOKENS, _RUN),
]
BUILDERS: dict[str, Builder] = {b.name: b for b in _ALL}


def names() -> list[str]:
    return list(BUILDERS)


def builder(name: str) -> Builder:
    if name not in BUILDERS:
        raise KeyError(f"no builder {name!r}; there are: {', '.join(BUILDERS)}")
    return BUILDERS[name]


def build(name: str, *, size: str = "full", dynamic: bool = False, **overrides: Any) -> onnx.ModelProto:
    """The model in memory. `overrides` are the builder function's own arguments."""
    chosen = builder(name)
    return chosen.make(**chosen.sizes(size, dynamic, overrides))


def path(name: str, *, size: str = "full", dynamic: bool = False, cache: Path = CACHE, **overrides: Any) -> Path:
    """The model as a file under `cache`, built on the first call. The folder's name carries a hash of the sizes and of
    the builders' source, so an edited builder never serves a stale model."""
    sizes = builder(name).sizes(size, dynamic, overrides)
    key = hashlib.sha256((json.dumps([name, sizes], sort_keys=True, default=list) + _sources()).encode()).hexdigest()
    label = f"{name}-{size}{'-dynamic' if dynamic else ''}-{key[:10]}"
    target = cache / label / f"{name}.onnx"
    if not target.exists():
        save(builder(name).make(**sizes), target)
    return target


def save(model: onnx.ModelProto, target: Path) -> None:
    """Writes `target` whole or not at all: into a temporary folder beside its own, then renamed."""
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix=".tmp-") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        weights = sum(len(t.raw_data) for t in model.graph.initializer)
        if weights > EXTERNAL_BYTES:
            onnx.save_model(model, folder / target.name, save_as_external_data=True,
                            location=f"{target.name}.data", size_threshold=1024)
        else:
            onnx.save_model(model, folder / target.name)
        try:
            os.rename(folder, target.parent)
        except OSError:
            if not target.exists():  # anything but another process having been first
                raise


def _sources() -> str:
    folder = Path(__file__).parent
    return "".join(f.read_text(encoding="utf-8") for f in sorted(folder.glob("*.py")))
