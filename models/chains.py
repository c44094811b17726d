"""Memory-bound chains of real models, as PyTorch's exporter (TorchScript, opset 17) spells them.

Each is one graph with dense float32 inputs. They are the cases for which a fused kernel must beat ONNX Runtime by a
stated ratio (`must_hold`). Full shapes: sequence 512, hidden 768, feed-forward 3072, 12 heads of 64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from models.builders import spelling as s
from models.builders.graph import Array, Graph
from models.builders.registry import CACHE

Feeds = dict[str, npt.NDArray[Any]]
Body = Callable[[Graph, "Shapes", Sequence[str]], Sequence[str]]
# How an input is drawn: rng and shape -> array.
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
InputsSpec = Callable[["Shapes"], list[tuple[tuple[int, ...], Draw]]]


@dataclass(frozen=True)
class Shapes:
    seq: int = 512
    hidden: int = 768
    ffn: int = 3072
    heads: int = 12
    head: int = 64
    channels: int = 64  # of the image chains; GroupNorm has twice as many
    groups: int = 32
    side: int = 56
    classes: int = 8192
    rows: int = 128  # of the cross-entropy chain


SMALL = Shapes(16, 48, 96, 2, 8, 8, 4, 6, 40, 5)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.random(shape, dtype=np.float32)


def _pad_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Ones, then at least one zero at the end of the last axis."""
    length = shape[-1]
    real = np.arange(length) < rng.integers(length // 2, length)
    return np.array(np.broadcast_to(real, shape), np.float32)


def _additive_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray((1.0 - _pad_mask(rng, shape)) * -10000.0, np.float32)


def _probabilities(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    e = np.exp(_normal(rng, shape))
    return np.asarray(e / e.sum(-1, keepdims=True), np.float32)


def _one_hot(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(np.arange(shape[-1]) == rng.integers(0, shape[-1], (shape[0], 1)), np.float32)


def _learning_rate(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.full(shape, 1e-3, np.float32)


@dataclass(frozen=True)
class Chain:
    """`inputs_spec(shapes)` lists (shape, draw); inputs are called i0, i1, … and outputs o0, o1, …

    `must_hold` is the least ratio to ONNX Runtime (all optimizations, one thread, full shapes), if one is required.
    """

    name: str
    body: Body
    inputs_spec: InputsSpec
    must_hold: float | None = None
    outputs_spec: Callable[[Shapes], list[tuple[int, ...]]] | None = None  # default: one, shaped as i0

    def model(self, *, small: bool = False, seed: int = 0) -> onnx.ModelProto:
        shapes = SMALL if small else Shapes()
        g = Graph(self.name, seed=seed)
        inputs = [g.input(f"i{j}", shape) for j, (shape, _) in enumerate(self.inputs_spec(shapes))]
        results = self.body(g, shapes, inputs)
        spec = self.outputs_spec(shapes) if self.outputs_spec else [self.inputs_spec(shapes)[0][0]]
        for j, (value, shape) in enumerate(zip(results, spec, strict=True)):
            g.output(value, f"o{j}", shape)
        return g.finish()

    def inputs(self, seed: int = 0, *, small: bool = False) -> Feeds:
        rng = np.random.default_rng(seed + 1)  # not the weights' stream
        return {f"i{j}": draw(rng, shape) for j, (shape, draw) in
                enumerate(self.inputs_spec(SMALL if small else Shapes()))}

    def path(self, *, small: bool = False, cache: Path = CACHE) -> Path:
        """The model as a file; rewritten on every call so that an edit here is never missed."""
        target = cache / f"chain-{self.name}-{'small' if small else 'full'}" / f"{self.name}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        model = self.model(small=small).SerializeToString()
        if not target.exists() or target.read_bytes() != model:
            target.write_bytes(model)
        return target


# -- activations --------------------------------------------------------------------------------------------
def _bias_gelu_erf(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    y = g.op("Add", i[0], g.weight("b", g.normal(n.ffn)))
    half = g.op("Mul", y, g.const(0.5))
    return [g.op("Mul", half, g.op("Add", g.op("Erf", g.op("Div", y, g.const(math.sqrt(2.0)))), g.const(1.0)))]


def _gelu_tanh_pow(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [s.gelu_tanh(g, i[0])]


def _gelu_tanh_mul(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    x = i[0]
    cubic = g.op("Mul", g.op("Mul", x, g.const(0.044715)), x)
    inner = g.op("Mul", g.op("Mul", x, g.const(0.7978845608)), g.op("Add", cubic, g.const(1.0)))
    return [g.op("Mul", g.op("Mul", x, g.const(0.5)), g.op("Add", g.op("Tanh", inner), g.const(1.0)))]


def _swiglu(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [g.op("Mul", s.silu(g, i[0]), i[1])]


def _halves(g: Graph, x: str, width: int) -> list[str]:
    return g.ops("Split", 2, x, g.const([width, width]), axis=-1)


def _swiglu_packed(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    gate, up = _halves(g, i[0], n.ffn)
    return [g.op("Mul", s.silu(g, gate), up)]


def _geglu_packed(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    gate, up = _halves(g, i[0], n.ffn)
    return [g.op("Mul", up, s.gelu_erf(g, gate))]


def _mish(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [g.op("Mul", i[0], g.op("Tanh", g.op("Softplus", i[0])))]


# -- normalisations -----------------------------------------------------------------------------------------
def _layer_norm(g: Graph, n: Shapes, x: str) -> str:
    """The formula written out in PyTorch, so x - mean appears twice."""
    mean = g.op("ReduceMean", x, axes=[-1], keepdims=1)
    variance = g.op("ReduceMean", g.op("Pow", g.op("Sub", x, mean), g.const(2.0)), axes=[-1], keepdims=1)
    deviation = g.op("Sqrt", g.op("Add", variance, g.const(1e-5)))
    scaled = g.op("Mul", g.op("Div", g.op("Sub", x, mean), deviation), g.weight("w", g.normal(n.hidden)))
    return g.op("Add", scaled, g.weight("b", g.normal(n.hidden)))


def _layernorm_decomposed(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [_layer_norm(g, n, i[0])]


def _bias_residual_layernorm(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [_layer_norm(g, n, g.op("Add", g.op("Add", i[0], g.weight("bias", g.normal(n.hidden))), i[1]))]


def _rmsnorm_llama(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [g.op("Mul", g.weight("w", g.normal(n.hidden)), s.rms_scale(g, i[0], 1e-6))]


def _rmsnorm_gemma(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    scaled = s.rms_scale(g, i[0], 1e-6)
    return [g.op("Mul", scaled, g.op("Add", g.weight("w", g.normal(n.hidden)), g.const(1.0)))]


def _residual_rmsnorm(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    h = g.op("Add", i[0], i[1])
    return [h, g.op("Mul", g.weight("w", g.normal(n.hidden)), s.rms_scale(g, h, 1e-6))]


def _bn_silu_residual(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    shape = (1, n.channels, 1, 1)  # the exporter folds the Unsqueezes of a weight
    y = g.op("Add", g.op("Mul", i[0], g.weight("w", g.normal(*shape))), g.weight("b", g.normal(*shape)))
    return [g.op("Add", s.silu(g, y), i[1])]


def _groupnorm_silu(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    flat = g.op("Reshape", i[0], g.const([0, n.groups, -1]))
    ones = g.const(np.ones(n.groups, np.float32))
    normal = g.op("InstanceNormalization", flat, ones, g.const(np.zeros(n.groups, np.float32)), epsilon=1e-5)
    back = g.op("Reshape", normal, g.op("Shape", i[0]))
    shape = (2 * n.channels, 1, 1)
    y = g.op("Add", g.op("Mul", back, g.weight("w", g.normal(*shape))), g.weight("b", g.normal(*shape)))
    return [s.silu(g, y)]


# -- attention's memory-bound parts ---------------------------------------------------------------------------
def _rope_qk(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    q, k, cos, sin = i
    return [s.rope(g, x, s.unsqueeze(g, cos, 0, 1), s.unsqueeze(g, sin, 0, 1), n.head, dynamic=False) for x in (q, k)]


def _softmax_scale_mask(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    return [s.softmax(g, g.op("Add", g.op("Div", i[0], g.const(8.0)), i[1]))]


def _softmax_causal_where(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    triangle = g.weight("m", np.tril(np.ones((1, 1, n.seq, n.seq), np.float32)))
    keep = g.op("Greater", triangle, g.const(0.0))
    return [s.softmax(g, g.op("Where", keep, g.op("Div", i[0], g.const(8.0)), g.const(-1e9)))]


def _mask_build(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    key = s.unsqueeze(g, s.arange(g, 0, n.seq), 0)
    query = s.unsqueeze(g, s.arange(g, 0, n.seq), 1)
    causal = s.unsqueeze(g, g.op("LessOrEqual", key, query), 0, 1)
    real = g.op("Greater", s.unsqueeze(g, i[0], 1, 2), g.const(0.5))
    mask = g.op("Where", g.op("And", causal, real), g.const(0.0), g.const(-3.4e38))
    return [g.op("Mul", s.expand(g, mask, [1, 1, n.seq, n.seq]), g.const(1.0))]


def _alibi_softmax(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    slopes = g.weight("sl", g.rng.random((1, n.heads, 1, 1), dtype=np.float32))
    positions = s.unsqueeze(g, s.arange(g, 0, n.seq), 0, 1, 2)
    distance = g.op("Cast", g.op("Sub", positions, g.const(n.seq - 1)), to=1)
    scaled = g.op("Mul", i[0], g.const(0.125))
    return [s.softmax(g, g.op("Add", scaled, g.op("Mul", slopes, distance)))]


# -- gradients and optimizers ---------------------------------------------------------------------------------
def _gelu_erf_grad(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    x, dy = i
    cdf = g.op("Mul", g.op("Add", g.op("Erf", g.op("Mul", x, g.const(0.70710678))), g.const(1.0)), g.const(0.5))
    density = g.op("Exp", g.op("Mul", g.op("Mul", x, g.const(-0.5)), x))
    return [g.op("Mul", dy, g.op("Add", cdf, g.op("Mul", g.op("Mul", x, density), g.const(0.39894228))))]


def _gelu_tanh_grad(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    x, dy = i
    k = math.sqrt(2.0 / math.pi)
    cubic = g.op("Mul", g.op("Mul", g.op("Mul", x, g.const(0.044715)), x), x)
    t = g.op("Tanh", g.op("Mul", g.op("Add", x, cubic), g.const(k)))
    left = g.op("Mul", g.op("Add", t, g.const(1.0)), g.const(0.5))
    slope = g.op("Sub", g.const(1.0), g.op("Mul", t, t))
    inner = g.op("Add", g.op("Mul", g.op("Mul", x, g.const(3 * 0.044715)), x), g.const(1.0))
    right = g.op("Mul", g.op("Mul", g.op("Mul", g.op("Mul", x, g.const(0.5)), slope), g.const(k)), inner)
    return [g.op("Mul", dy, g.op("Add", left, right))]


def _ln_grad(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    """dx, dw, db of LayerNorm from the saved mean and 1/deviation."""
    x, dy, mean, rstd = i
    normal = g.op("Mul", g.op("Sub", x, mean), rstd)
    scaled = g.op("Mul", dy, g.weight("w", g.normal(n.hidden)))
    first = g.op("ReduceMean", scaled, axes=[-1], keepdims=1)
    second = g.op("ReduceMean", g.op("Mul", scaled, normal), axes=[-1], keepdims=1)
    dx = g.op("Mul", rstd, g.op("Sub", g.op("Sub", scaled, first), g.op("Mul", normal, second)))
    axes = g.const([0, 1])
    return [dx, g.op("ReduceSum", g.op("Mul", dy, normal), axes, keepdims=0), g.op("ReduceSum", dy, axes, keepdims=0)]


def _ln_grad_dx(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    x, dy, mean, rstd = i
    normal = g.op("Mul", g.op("Sub", x, mean), rstd)
    scaled = g.op("Mul", dy, g.weight("w", g.normal(n.hidden)))
    first = g.op("ReduceMean", scaled, axes=[-1], keepdims=1)
    second = g.op("ReduceMean", g.op("Mul", scaled, normal), axes=[-1], keepdims=1)
    return [g.op("Mul", rstd, g.op("Sub", g.op("Sub", scaled, first), g.op("Mul", normal, second)))]


def _softmax_grad(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    t = g.op("Mul", i[0], i[1])
    total = g.op("ReduceSum", t, g.const([-1]), keepdims=1)
    return [g.op("Mul", g.op("Sub", t, g.op("Mul", i[0], total)), g.const(0.125))]


def _ce_grad(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    x, one_hot = i
    e = g.op("Exp", g.op("Sub", x, g.op("ReduceMax", x, axes=[-1], keepdims=1)))
    p = g.op("Div", e, g.op("ReduceSum", e, g.const([-1]), keepdims=1))
    return [g.op("Div", g.op("Sub", p, one_hot), g.const(float(n.rows)))]


def _adamw(g: Graph, n: Shapes, i: Sequence[str]) -> list[str]:
    p, grad, m, v, rate = i
    m2 = g.op("Add", g.op("Mul", m, g.const(0.9)), g.op("Mul", grad, g.const(0.1)))
    v2 = g.op("Add", g.op("Mul", v, g.const(0.999)), g.op("Mul", g.op("Mul", grad, g.const(0.001)), grad))
    step = g.op("Div", m2, g.op("Add", g.op("Sqrt", v2), g.const(1e-8)))
    step = g.op("Add", step, g.op("Mul", p, g.const(0.01)))
    return [g.op("Sub", p, g.op("Mul", rate, step)), m2, v2]


# -- the list -------------------------------------------------------------------------------------------------
def _hidden(*draws: Draw) -> InputsSpec:
    return lambda n: [((1, n.seq, n.hidden), d) for d in draws]


def _ffn(*draws: Draw, packed: int = 1) -> InputsSpec:
    return lambda n: [((1, n.seq, packed * n.ffn), d) for d in draws]


def _scores(*draws: Draw) -> InputsSpec:
    return lambda n: [((1, n.heads, n.seq, n.seq), d) for d in draws]


def _images(*draws: Draw) -> InputsSpec:
    return lambda n: [((1, n.channels, n.side, n.side), d) for d in draws]


def _ln_grad_inputs(n: Shapes) -> list[tuple[tuple[int, ...], Draw]]:
    wide, narrow = (1, n.seq, n.hidden), (1, n.seq, 1)
    return [(wide, _normal), (wide, _normal), (narrow, _normal), (narrow, _uniform)]


def _rope_inputs(n: Shapes) -> list[tuple[tuple[int, ...], Draw]]:
    wide, table = (1, n.heads, n.seq, n.head), (n.seq, n.head)
    return [(wide, _normal), (wide, _normal), (table, _normal), (table, _normal)]


_ALL = [
    Chain("erf_gelu_bias", _bias_gelu_erf, _ffn(_normal), 3.0),
    Chain("tanh_gelu_pow", _gelu_tanh_pow, _ffn(_normal), 5.0),
    Chain("tanh_gelu_mul", _gelu_tanh_mul, _ffn(_normal), 5.0),
    Chain("layernorm_decomp", _layernorm_decomposed, _hidden(_normal), 1.7),
    Chain("bias_res_layernorm", _bias_residual_layernorm, _hidden(_normal, _normal), 8.0),
    Chain("rmsnorm_llama", _rmsnorm_llama, _hidden(_normal), 1.4),
    Chain("rmsnorm_gemma", _rmsnorm_gemma, _hidden(_normal), 1.4),
    Chain("res_rmsnorm", _residual_rmsnorm, _hidden(_normal, _normal), 1.4, lambda n: [(1, n.seq, n.hidden)] * 2),
    Chain("rope_qk", _rope_qk, _rope_inputs, 4.0, lambda n: [(1, n.heads, n.seq, n.head)] * 2),
    Chain("swiglu", _swiglu, _ffn(_normal, _normal), 1.8),
    Chain("swiglu_packed", _swiglu_packed, _ffn(_normal, packed=2), 1.8, lambda n: [(1, n.seq, n.ffn)]),
    Chain("geglu_packed", _geglu_packed, _ffn(_normal, packed=2), None, lambda n: [(1, n.seq, n.ffn)]),
    Chain("softmax_scale_mask", _softmax_scale_mask,
          lambda n: [((1, n.heads, n.seq, n.seq), _normal), ((1, 1, 1, n.seq), _additive_mask)]),
    Chain("softmax_causal_where", _softmax_causal_where, _scores(_normal)),
    Chain("mask_build", _mask_build, lambda n: [((1, n.seq), _pad_mask)], 5.0, lambda n: [(1, 1, n.seq, n.seq)]),
    Chain("alibi_softmax", _alibi_softmax, _scores(_normal)),
    Chain("gelu_erf_grad", _gelu_erf_grad, _ffn(_normal, _normal)),
    Chain("gelu_tanh_grad", _gelu_tanh_grad, _ffn(_normal, _normal)),
    Chain("ln_grad", _ln_grad, _ln_grad_inputs, None, lambda n: [(1, n.seq, n.hidden), (n.hidden,), (n.hidden,)]),
    Chain("ln_grad_dx", _ln_grad_dx, _ln_grad_inputs),
    Chain("softmax_grad", _softmax_grad, _scores(_probabilities, _normal)),
    Chain("adamw", _adamw, lambda n: [((n.hidden, n.ffn), d) for d in (_normal, _normal, _normal, _uniform)]
          + [((), _learning_rate)], None, lambda n: [(n.hidden, n.ffn)] * 3),
    Chain("ce_grad", _ce_grad, lambda n: [((n.rows, n.classes), _normal), ((n.rows, n.classes), _one_hot)]),
    Chain("mish", _mish, _images(_normal)),
    Chain("bn_silu_res", _bn_silu_residual, _images(_normal, _normal)),
    Chain("groupnorm_silu", _groupnorm_silu, lambda n: [((1, 2 * n.channels, 32, 32), _normal)]),
]
CHAINS: dict[str, Chain] = {c.name: c for c in _ALL}


def chains() -> list[Chain]:
    return list(_ALL)
