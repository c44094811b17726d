"""PyTorch modules as the TorchScript exporter spells them in ONNX (torch.onnx symbolic_opset9 to 17).

`fused=True` writes the newer operator instead (LayerNormalization, Gelu, RMSNormalization), as the dynamo
exporter does. Shapes in the docstrings: B batch, S sequence, D features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from models.builders.graph import DimSize, Graph, Size

FLOAT_MIN = float(np.finfo(np.float32).min)


def size(g: Graph, x: str, axis: int, known: DimSize) -> Size:
    """`x.size(axis)`: the int if the export is static there, else Shape and Gather."""
    if isinstance(known, int):
        return known
    return g.op("Gather", g.op("Shape", x), g.const(axis), axis=0)


def shape_of(g: Graph, dims: Sequence[Size]) -> str:
    """int64[len(dims)]: a constant when every dim is known, else Unsqueeze each and Concat."""
    if all(isinstance(d, int) for d in dims):
        return g.const([int(d) for d in dims])
    parts = [g.const([d]) if isinstance(d, int) else g.op("Unsqueeze", d, g.const([0])) for d in dims]
    return g.op("Concat", *parts, axis=0)


def view(g: Graph, x: str, dims: Sequence[Size]) -> str:
    return g.op("Reshape", x, shape_of(g, dims))


def expand(g: Graph, x: str, dims: Sequence[Size]) -> str:
    """`x.expand(dims)`, with the exporter's replacement of -1 by ones through ConstantOfShape, Mul, Equal, Where."""
    shape = shape_of(g, dims)
    if not all(isinstance(d, int) for d in dims):
        shape = g.op("Reshape", shape, g.const([-1]))
        rank = g.op("Shape", shape)
    else:
        rank = g.const([len(dims)])
    ones = g.op("ConstantOfShape", rank, value=numpy_helper.from_array(np.ones(1, np.int64)))
    same = g.op("Equal", shape, g.op("Mul", ones, g.const(-1)))
    return g.op("Expand", x, g.op("Where", same, ones, shape))


def unsqueeze(g: Graph, x: str, *axes: int) -> str:
    """One Unsqueeze per axis, as `x[None, :, None]` is exported."""
    for axis in axes:
        x = g.op("Unsqueeze", x, g.const([axis]))
    return x


def slice_(g: Graph, x: str, axis: int, start: Size, stop: Size | None) -> str:
    def edge(v: Size | None) -> str:
        if v is None:
            return g.const([np.iinfo(np.int64).max])
        return g.const([v]) if isinstance(v, int) else g.op("Unsqueeze", v, g.const([0]))

    return g.op("Slice", x, edge(start), edge(stop), g.const([axis]), g.const([1]))


def arange(g: Graph, start: Size, stop: Size) -> str:
    """int64 positions: Range, not folded by the exporter even when both ends are known."""
    begin = g.const(start) if isinstance(start, int) else start
    end = g.const(stop) if isinstance(stop, int) else g.op("Cast", stop, to=7)
    return g.op("Range", begin, end, g.const(1))


def linear(g: Graph, x: str, features_in: int, features_out: int, *, bias: bool = True,
           gain: float = 1.0) -> str:
    """nn.Linear on a rank-3 input: MatMul with the transposed weight, then Add with the bias first."""
    y = g.op("MatMul", x, g.weight("weight", g.normal(features_in, features_out, std=gain / math.sqrt(features_in))))
    return g.op("Add", g.weight("bias", g.normal(features_out, std=0.05)), y) if bias else y


def conv1d_gemm(g: Graph, x: str, lead: Sequence[Size], features_in: int, features_out: int, *,
                gain: float = 1.0) -> str:
    """GPT-2's Conv1D: Reshape to rank 2, Gemm, Reshape back to [*lead, features_out]."""
    flat = view(g, x, [-1, features_in])
    weight = g.weight("weight", g.normal(features_in, features_out, std=gain / math.sqrt(features_in)))
    y = g.op("Gemm", flat, weight, g.weight("bias", g.normal(features_out, std=0.05)))
    return view(g, y, [*lead, features_out])


def layer_norm_core(g: Graph, x: str, weight: str, bias: str, eps: float) -> str:
    mean = g.op("ReduceMean", x, axes=[-1])
    centred = g.op("Sub", x, mean)
    variance = g.op("ReduceMean", g.op("Pow", centred, g.const(2.0)), axes=[-1])
    scaled = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, g.const(eps))))
    return g.op("Add", g.op("Mul", scaled, weight), bias)


def layer_norm(g: Graph, x: str, features: int, *, eps: float = 1e-5, fused: bool = False) -> str:
    """nn.LayerNorm over the last axis: nine nodes before opset 17, LayerNormalization since."""
    weight = g.weight("weight", g.normal(features, std=0.1, mean=1.0))
    bias = g.weight("bias", g.normal(features, std=0.1))
    if fused:
        return g.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=eps)
    return layer_norm_core(g, x, weight, bias, eps)


def rms_scale(g: Graph, x: str, eps: float) -> str:
    """x · rsqrt(mean(x²) + eps); rsqrt is 1 / Sqrt."""
    mean = g.op("ReduceMean", g.op("Pow", x, g.const(2.0)), axes=[-1], keepdims=1)
    inverse = g.op("Div", g.const(1.0), g.op("Sqrt", g.op("Add", mean, g.const(eps))))
    return g.op("Mul", x, inverse)


def rms_norm(g: Graph, x: str, features: int, *, eps: float = 1e-6, fused: bool = False) -> str:
    """LlamaRMSNorm over the last axis, or RMSNormalization (opset 23)."""
    weight = g.weight("weight", g.normal(features, std=0.1, mean=1.0))
    if fused:
        return g.op("RMSNormalization", x, weight, axis=-1, epsilon=eps)
    return g.op("Mul", weight, rms_scale(g, x, eps))


def gelu_erf(g: Graph, x: str, *, fused: bool = False) -> str:
    if fused:
        return g.op("Gelu", x, approximate="none")
    inner = g.op("Add", g.op("Erf", g.op("Div", x, g.const(math.sqrt(2.0)))), g.const(1.0))
    return g.op("Mul", g.op("Mul", x, inner), g.const(0.5))


def gelu_tanh(g: Graph, x: str, *, fused: bool = False) -> str:
    """transformers' NewGELUActivation."""
    if fused:
        return g.op("Gelu", x, approximate="tanh")
    half = g.op("Mul", x, g.const(0.5))
    cubic = g.op("Mul", g.op("Pow", x, g.const(3.0)), g.const(0.044715))
    inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cubic), g.const(math.sqrt(2.0 / math.pi))))
    return g.op("Mul", half, g.op("Add", inner, g.const(1.0)))


def silu(g: Graph, x: str) -> str:
    return g.op("Mul", x, g.op("Sigmoid", x))


def rotate_half(g: Graph, x: str, head: int, *, dynamic: bool) -> str:
    """cat(-x[..., d/2:], x[..., :d/2]); a dynamic export computes d/2 in the graph."""
    half: Size = head // 2
    if dynamic:
        last = g.op("Gather", g.op("Shape", x), g.const(3), axis=0)
        half = g.op("Cast", g.op("Div", last, g.const(2)), to=7)
    low = slice_(g, x, 3, 0, half)
    high = slice_(g, x, 3, half, None)
    return g.op("Concat", g.op("Neg", high), low, axis=-1)


def rope(g: Graph, x: str, cos: str, sin: str, head: int, *, dynamic: bool) -> str:
    """x [B, H, S, head]; cos and sin broadcast against it."""
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", rotate_half(g, x, head, dynamic=dynamic), sin))


def inverse_frequencies(head: int, theta: float = 10000.0) -> npt.NDArray[np.float32]:
    """RoPE's angles per position, float32[head / 2]."""
    return (1.0 / theta ** (np.arange(0, head, 2, dtype=np.float64) / head)).astype(np.float32)


def rope_tables(g: Graph, positions: str, head: int, theta: float = 10000.0) -> tuple[str, str]:
    """cos and sin [1, S, head] of int64 positions [1, S], computed in the graph as LlamaRotaryEmbedding does."""
    angles = g.op("Mul", g.op("Cast", unsqueeze(g, positions, 2), to=1), g.const(inverse_frequencies(head, theta)))
    both = g.op("Concat", angles, angles, axis=-1)
    return g.op("Mul", g.op("Cos", both), g.const(1.0)), g.op("Mul", g.op("Sin", both), g.const(1.0))


def padding_mask(g: Graph, mask: str) -> str:
    """BERT's additive mask [B, 1, 1, S] of int64 [B, S]: (1 - mask) · float32's minimum."""
    wide = g.op("Cast", unsqueeze(g, mask, 1, 2), to=1)
    return g.op("Mul", g.op("Sub", g.const(1.0), wide), g.const(FLOAT_MIN))


def softmax(g: Graph, x: str) -> str:
    return g.op("Softmax", x, axis=-1)
