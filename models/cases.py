"""What `make bench` and `make demo` run: each case is a model file with the inputs to time and to verify it on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import attention_peers, builders
from models.attention import ATTENTIONS
from models.chains import chains
from models.inputs import inputs_for
from models.required import MUST_BEST, MUST_HOLD
from models.zoo import zoo
from tilegraph.bench import Peer
from tilegraph.bench.kinds import Found
from tilegraph.codegen.isa import host

Feeds = dict[str, npt.NDArray[Any]]
GROUPS = ("chains", "zoo", "built", "attention")
BATCHES = {"minilm_l3_8": ("minilm_l3", 8)}  # further cases of real models


@dataclass(frozen=True)
class Case:
    """`feeds` are timed and verified; `others` (other sizes, for models that leave sizes open) are verified only.

    `must_hold`: the least median ratio to ONNX Runtime at one thread (models/required.py). Without one, and at other
    thread counts, the ratio's interval must reach `NOT_SLOWER`.
    `must_best`: the least median ratio to the best peer, for runs that have other peers.
    `reference`: the peers that `must_best` counts beside ONNX Runtime on the original; all where there is none.
    `special(found, folder)`: peers that exist for this case only, whose files go into the folder.
    `precision`: what `optimize` is asked for; answers of peers may then be as far off.
    """

    name: str
    group: str
    path: Callable[[], Path]
    feeds: Callable[[], Feeds]
    others: Callable[[], Sequence[Feeds]] = tuple
    must_hold: float | None = None
    runs: int = 30
    must_best: float | None = None
    reference: tuple[str, ...] = ()
    special: Callable[[Sequence[Found], Path], Sequence[Peer]] = lambda found, folder: ()
    precision: str = "float32"


def cases(group: str) -> list[Case]:
    """The cases of a group; `KeyError` for an unknown one."""
    return {"chains": _chain_cases, "zoo": _zoo_cases, "built": _built_cases, "attention": _attention_cases}[group]()


def _chain_cases() -> list[Case]:
    return [Case(c.name, "chains", c.path, c.inputs, must_hold=c.must_hold) for c in chains()]


def _attention_cases() -> list[Case]:
    return [Case(a.name, "attention", a.path, a.inputs, must_hold=a.must_hold, runs=_rounds(a.length),
                 must_best=MUST_BEST.get(a.name), reference=attention_peers.references(a),
                 special=partial(attention_peers.special, a))
            for a in ATTENTIONS]


def _rounds(length: int) -> int:
    """Of a long sequence, of which the dense graph takes seconds, no more than an interval needs."""
    return 15 if length <= 2048 else 8 if length <= 4096 else 6


def _zoo_cases() -> list[Case]:
    found = []
    models = zoo()
    batches = [replace(m, name=name, batch=n) for name, (of, n) in BATCHES.items() for m in models if m.name == of]
    for model in (*models, *batches):
        def path(model: Any = model) -> Path:
            return Path(model.path)

        def feeds(model: Any = model) -> Feeds:
            return dict(model.inputs(0))

        def others(model: Any = model) -> list[Feeds]:
            batches = [1] if model.batch != 1 else []
            if "batch" in model.dynamic:
                batches.append(2)
            made = [model.inputs(1, batch=b) for b in batches]
            if not made and model.dynamic:
                made = [model.inputs(1)]
            return made

        found.append(Case(model.name, "zoo", path, feeds, others, MUST_HOLD.get(model.name),
                          must_best=MUST_BEST.get(model.name)))
    return found


def _built(label: str, name: str, *, dims: dict[str, int] | None = None, other: dict[str, int] | None = None,
           runs: int = 30, precision: str = "float32", **sizes: Any) -> Case:
    """`dims` makes it a dynamic export, timed at those sizes and verified at `other` too.

    Timed on sequences without padding, because kernels pass over what a mask hides; verified with padding as well.
    """
    dynamic = dims is not None

    def path() -> Path:
        return builders.path(name, dynamic=dynamic, **sizes)

    def feeds() -> Feeds:
        return inputs_for(path(), dims=dims, padded=False)

    def others() -> list[Feeds]:
        masked = [inputs_for(path(), seed=1, dims=dims)] if "attention_mask" in feeds() else []
        return [*masked, *([inputs_for(path(), seed=1, dims=other)] if other else [])]

    def special(found: Sequence[Found], folder: Path) -> list[Peer]:
        return [Peer(f"openvino-{precision}", path(), engine=one.kind.engine, python=one.python, create=False,
                     options={"INFERENCE_PRECISION_HINT": precision})
                for one in found if one.kind.name == "openvino" and not one.absent and precision != "float32"]

    return Case(label, "built", path, feeds, others, MUST_HOLD.get(label), runs, MUST_BEST.get(label),
                special=special, precision=precision)


def _bfloat16_cases() -> list[Case]:
    """No cases where the machine has no products of bfloat16: there `--precision bf16` is an error."""
    if "avx512bf16" not in host().features:
        return []
    return [_built("bert_128_bf16", "bert", precision="bf16"),
            _built("llama_window_4096_bf16", "llama_window", runs=10, precision="bf16")]


def _built_cases() -> list[Case]:
    return [
        _built("bert_128", "bert"),
        _built("bert_512", "bert", seq=512),
        _built("bert_dynamic", "bert", dims={"batch": 4, "seq": 128}, other={"batch": 1, "seq": 37}),
        _built("bert_embeddings", "bert_embeddings", dims={"batch": 1, "seq": 128}, other={"batch": 3, "seq": 21}),
        _built("bert_fused_ops", "bert", fused=True),
        _built("llama_512", "llama"),
        _built("llama_2_layers", "llama", layers=2),
        _built("llama_dynamic", "llama", dims={"batch": 2, "seq": 128}, other={"batch": 1, "seq": 33}),
        _built("llama_gqa", "llama_gqa"),
        _built("llama_fused_ops", "llama", seq=128, fused=True),
        _built("gpt2_prefill_512", "gpt2_prefill"),
        _built("gpt2_decode_511", "gpt2_decode"),
        _built("gpt2_decode_1_layer", "gpt2_decode", layers=1),
        _built("gpt2_decode_dynamic", "gpt2_decode", dims={"batch": 1, "past": 255}, other={"batch": 2, "past": 30}),
        _built("resnet50", "resnet50"),
        _built("resnet50_dynamic", "resnet50", batch_norm=True, dims={"batch": 2}, other={"batch": 1}),
        _built("mobilenetv2", "mobilenetv2"),
        _built("mobilenetv2_dynamic", "mobilenetv2", dims={"batch": 4}, other={"batch": 1}),
        _built("vgg19", "vgg19", runs=12),
        _built("yolo_n_320", "yolo_n"),
        _built("yolo_n_dynamic", "yolo_n", dims={"batch": 2}, other={"batch": 1}),
        _built("window_2048", "window", runs=15),
        _built("int4_row", "blocks"),
        _built("int4_rows_8", "blocks", seq=8),
        _built("int4_dynamic", "blocks", dims={"batch": 2, "seq": 12}, other={"batch": 1, "seq": 3}),
        _built("llama_window_4096", "llama_window", runs=10),
        _built("mistral_4096", "mistral", runs=10),
        _built("longformer_4096", "longformer", runs=10),
        _built("longformer_chunks_4096", "longformer_chunks", runs=6),
        _built("bigbird_layer_4096", "bigbird", runs=10),
        *_bfloat16_cases(),
    ]


def shapes(feeds: Feeds) -> str:
    """The shapes of the largest input, for tables: "1x128x768"."""
    largest = max(feeds.values(), key=lambda v: (v.size, v.ndim))
    return "x".join(map(str, np.shape(largest))) or "scalar"
