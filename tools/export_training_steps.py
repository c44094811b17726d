"""Writes tests/data/training: training steps that PyTorch traced and exported, parameters in, updated parameters out.

    PYTHON tools/export_training_steps.py [NAME ...]

PYTHON has torch and onnxscript (the tests need neither). Gradients are those of `torch.func.grad_and_value` under
`make_fx`; those of convolutions and pooling are written as operators for which the exporter has functions. Inputs:
parameters, buffers, the optimizer's state, lr, the batch (x0, ...; of symbolic size where the export lets it be) and
targets y. Outputs: loss, and everything new in the same order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch.func import functional_call, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "training"
aten = torch.ops.aten
Named = dict[str, Tensor]


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


class Mlp(nn.Module):  # type: ignore[misc]
    """x [B, 24] to [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.dropout(F.gelu(self.b(F.relu(self.a(x)))), 0.0, training=True))


class Bert(nn.Module):  # type: ignore[misc]
    """x [2, 8, 32], mask [2, 8] to [2, 5]: one post-norm layer and a classifier of the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down, self.classes = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (_heads(f(x), 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(16) + (1 - mask[:, None, None, :]) * -1e9
        x = self.norm1(x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return self.classes(x[:, 0])


class Gpt(nn.Module):  # type: ignore[misc]
    """Tokens [2, 8] to logits [2, 8, 40]: one pre-norm layer with a causal mask, the head tied to the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Embedding(8, 32)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(32) for _ in range(3))
        self.qkv, self.o = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(8))
        q, k, v = (_heads(part, 2) for part in self.qkv(self.norm1(x)).split(32, -1))
        hidden = ~torch.ones(8, 8, dtype=torch.bool).tril()
        weights = (q @ k.transpose(-1, -2) / 4.0).masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).reshape(x.shape))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return self.norm3(x) @ self.words.weight.t()


class Lora(nn.Module):  # type: ignore[misc]
    """x [B, 48] to [B, 16]: a frozen matrix and a product of two thin ones that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.randn(48, 48) / 7, requires_grad=False)
        self.classes = nn.Parameter(torch.randn(48, 16) / 7, requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(48, 4) / 7), nn.Parameter(torch.randn(4, 48) / 7)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.frozen + (x @ self.down) @ self.up * 2.0
        return (y * torch.sigmoid(y)) @ self.classes


class Cnn(nn.Module):  # type: ignore[misc]
    """x [B, 3, 8, 8] to [B, 10]: batch normalisation in training, max pooling, a convolution with strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
                                             nn.Conv2d(8, 16, 3, padding=1, stride=2))
        self.classes = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        return self.classes(F.relu(self.conv2(x)).flatten(1))


class Lstm(nn.Module):  # type: ignore[misc]
    """x [B, 3, 16] to [B, 5] in three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.classes = nn.Linear(16, 96), nn.Linear(24, 96, bias=False), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 24)
        for t in range(3):
            i, f, g, o = (self.enter(x[:, t]) + self.again(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.classes(h)


Update = Callable[[Named, Named, Tensor, Named], tuple[Named, Named]]


def sgd(params: Named, grads: Named, lr: Tensor, state: Named) -> tuple[Named, Named]:
    return {k: p - lr * grads[k] for k, p in params.items()}, {}


def accumulate(params: Named, grads: Named, lr: Tensor, state: Named) -> tuple[Named, Named]:
    """Of several batches: gradients are added to what there is, parameters stay."""
    return {}, {k: sums + grads[k.removesuffix(".sum")] for k, sums in state.items()}


def adamw(params: Named, grads: Named, lr: Tensor, state: Named) -> tuple[Named, Named]:
    """With gradients cut to a norm of 1."""
    norm = torch.sqrt(sum((g * g).sum() for g in grads.values()))
    scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    t = state["t"] + 1
    made: Named = {"t": t}
    updated: Named = {}
    for k, p in params.items():
        g = grads[k] * scale
        m = made[f"{k}.m"] = 0.9 * state[f"{k}.m"] + 0.1 * g
        v = made[f"{k}.v"] = 0.999 * state[f"{k}.v"] + 0.001 * g * g
        step = (m / (1 - 0.9 ** t)) / ((v / (1 - 0.999 ** t)).sqrt() + 1e-8)
        updated[k] = p * (1 - lr * 0.01) - lr * step
    return updated, made


def _state(update: Update, params: Named) -> Named:
    if update is accumulate:
        return {f"{k}.sum": torch.zeros_like(p) for k, p in params.items()}
    if update is adamw:
        both = {f"{k}.{kind}": torch.zeros_like(p) for k, p in params.items() for kind in "mv"}
        return {"t": torch.tensor(0.0), **both}
    return {}


def _conv_backward(g: Tensor, x: Tensor, w: Tensor, bias: Any, stride: list[int], pad: list[int], dilation: list[int],
                   transposed: bool, output_pad: list[int], groups: int, wanted: list[bool]) -> tuple[Any, Any, Any]:
    size = w.shape[2:]
    reached = [(int(g.shape[2 + i]) - 1) * stride[i] - 2 * pad[i] + dilation[i] * (size[i] - 1) + 1 for i in range(2)]
    missing = [int(x.shape[2 + i]) - reached[i] for i in range(2)]
    by_x = aten.convolution(g, w, None, stride, pad, dilation, True, missing, groups) if wanted[0] else None
    by_w = aten.convolution(x.transpose(0, 1), g.transpose(0, 1), None, dilation, pad, stride, False, [0, 0], 1)
    return by_x, by_w.transpose(0, 1)[:, :, :size[0], :size[1]], g.sum((0, 2, 3)) if wanted[2] else None


def _pool_backward(g: Tensor, x: Tensor, *rest: Any) -> Tensor:
    places = rest[-1]
    flat = torch.zeros_like(x).flatten(2)
    return flat.scatter_add(2, places.flatten(2), g.flatten(2)).view(x.shape)


def export(name: str, module: nn.Module, inputs: list[Tensor], targets: Tensor, update: Update, *, fixed: bool = False,
           loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> None:
    params = {k: v.detach() for k, v in module.named_parameters() if v.requires_grad}
    frozen = {k: v.detach() for k, v in module.named_parameters() if not v.requires_grad}
    buffers, state = dict(module.named_buffers()), _state(update, params)
    made: list[str] = []

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        rest = iter(given)
        now, kept, old = ({k: next(rest) for k in part} for part in (params, buffers, state))
        lr, batch, y = next(rest), [next(rest) for _ in inputs], next(rest)

        def of(p: Named) -> tuple[Tensor, Named]:
            moved = {k: v.clone() for k, v in kept.items()}
            return loss(functional_call(module, {**p, **frozen, **moved}, tuple(batch)), y), moved

        grads, (value, moved) = grad_and_value(of, has_aux=True)(now)
        updated, new = update(now, grads, lr, old)
        made[:] = [f"{k}.new" for k in (*updated, *moved, *new)]
        return value, *updated.values(), *moved.values(), *new.values()

    table = {**core_aten_decompositions(), aten.convolution_backward.default: _conv_backward,
             aten.max_pool2d_with_indices_backward.default: _pool_backward}
    args = (*params.values(), *buffers.values(), *state.values(), torch.tensor(0.01), *inputs, targets)
    traced = make_fx(step, decomposition_table=table, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*args)
    for node in traced.graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
    traced.graph.eliminate_dead_code()
    traced.recompile()
    some = len(inputs) + 1
    names = [*params, *buffers, *state, "lr", *(f"x{i}" for i in range(len(inputs))), "y"]
    free = None if fixed else {0: torch.export.Dim.DYNAMIC}
    dims = (*[None] * (len(args) - some), *[free] * some)
    program = torch.onnx.export(traced, args, dynamo=True, input_names=names, output_names=["loss", *made],
                                dynamic_shapes=dims, opset_version=18, verbose=False)
    proto = program.model_proto
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))


def _ignoring(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, 40), y.reshape(-1), ignore_index=3)


def _weighted(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, weight=torch.linspace(0.5, 1.5, 16), label_smoothing=0.1)


def _numbers(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape)


STEPS: dict[str, Callable[[str], None]] = {
    "mlp_sgd": lambda n: export(n, Mlp(), [torch.randn(6, 24)], _numbers(10, 6), sgd),
    "mlp_accumulate": lambda n: export(n, Mlp(), [torch.randn(6, 24)], _numbers(10, 6), accumulate),
    "mlp_adamw": lambda n: export(n, Mlp(), [torch.randn(6, 24)], _numbers(10, 6), adamw),
    "bert_sgd": lambda n: export(n, Bert(), [torch.randn(2, 8, 32), torch.ones(2, 8)], _numbers(5, 2), sgd, fixed=True),
    "gpt_sgd": lambda n: export(n, Gpt(), [_numbers(40, 2, 8)], _numbers(40, 2, 8), sgd, fixed=True, loss=_ignoring),
    "lora_adamw": lambda n: export(n, Lora(), [torch.randn(6, 48)], _numbers(16, 6), adamw, loss=_weighted),
    "cnn_sgd": lambda n: export(n, Cnn(), [torch.randn(4, 3, 8, 8)], _numbers(10, 4), sgd),
    "lstm_adamw": lambda n: export(n, Lstm(), [torch.randn(6, 3, 16)], _numbers(5, 6), adamw),
}

if __name__ == "__main__":
    for chosen in sys.argv[1:] or STEPS:
        torch.manual_seed(0)
        STEPS[chosen](chosen)
