"""What transformers and their kin are made of, whole: normalise, project, attend or mix, add; as exporters order it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.families.products import matrix
from tests.fuzz.families.reductions import reduced

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def _tokens(g: Graph) -> str | None:
    """Something [batch, tokens, width] of floats that are no outliers."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim != 3 or g.values[x].dtype == np.float64 or not g.values[x].size:
        return None
    return x if g.finite(x, 100) else None


def _norm(g: Graph, x: str) -> str | None:
    """LayerNormalization or RMSNormalization of the last axis, the operator or its parts."""
    dtype, last = g.values[x].dtype, g.values[x].shape[-1:]
    scale = g.const(g.rng.random(last) + 0.5, dtype)
    epsilon = float(g.rng.choice([1e-5, 1e-6, 1e-12 if dtype == np.float32 else 1e-3]))
    kind = int(g.rng.integers(3))
    if kind == 0 and g.opset >= 17:
        shift = [g.const(g.rng.standard_normal(last), dtype)] if g.rng.random() < 0.8 else []
        more: dict[str, Any] = {} if g.rng.random() < 0.2 else {"epsilon": epsilon}
        return g.put("LayerNormalization", [x, scale, *shift], **more)
    if kind == 1 and g.opset >= 23:
        return g.put("RMSNormalization", [x, scale], axis=-1, epsilon=epsilon)
    square = g.put("Pow", [x, g.const(2, dtype)])
    mean = square and reduced(g, "ReduceMean", square, [-1], 1)
    mean = mean and g.put("Add", [mean, g.const(max(epsilon, 1e-6), dtype)])
    root = mean and g.put("Sqrt", [mean])
    turned = root and g.put("Reciprocal", [root])
    made = turned and g.put("Mul", [x, turned])
    return made and g.put("Mul", [scale, made])


def _linear(g: Graph, x: str, width: int) -> str | None:
    made = g.put("MatMul", [x, matrix(g, g.values[x].shape[-1], width, g.values[x].dtype)])
    if made is None or g.rng.random() < 0.3:
        return made
    bias = g.const(g.rng.standard_normal(width), g.values[x].dtype)
    return g.put("Add", [bias, made] if g.rng.random() < 0.5 else [made, bias])


def _activated(g: Graph, x: str) -> str | None:
    """GELU in one of its spellings, SiLU or ReLU."""
    dtype, kind = g.values[x].dtype, int(g.rng.integers(4))
    if kind == 0:
        part = g.put("Mul", [x, g.const(2**-0.5, dtype)]) if g.rng.random() < 0.5 else g.put(
            "Div", [x, g.const(2**0.5, dtype)])
        part = part and g.put("Erf", [part])
        part = part and g.put("Add", [part, g.const(1, dtype)])
        half = part and g.put("Mul", [x, g.const(0.5, dtype)])
        return part and half and g.put("Mul", [half, part])
    if kind == 1 and g.opset >= 20:
        return g.put("Gelu", [x], approximate=str(g.rng.choice(["none", "tanh"])))
    if kind == 2:
        gate = g.put("Sigmoid", [x])
        return gate and g.put("Mul", [x, gate])
    return g.put("Relu", [x])


def _heads(g: Graph, x: str) -> str | None:
    """Attention of x with itself: the operator Attention, which wants heads before positions, or its parts."""
    dtype, (batch, length, _) = g.values[x].dtype, g.values[x].shape
    heads, depth = int(g.rng.choice([1, 2, 4])), int(g.rng.choice([4, 8, 16]))
    shared = int(g.rng.choice([1, heads]))
    parts = []
    for count in (heads, shared, shared):
        made = _linear(g, x, count * depth)
        made = made and g.put("Reshape", [made, g.const([0, 0, count, depth], np.int64)])
        parts.append(made and g.put("Transpose", [made], perm=[0, 2, 1, 3]))
    q, k, v = parts
    if not q or not k or not v:
        return None
    causal = np.tril(np.ones((length, length), bool))
    if g.opset >= 23 and g.rng.random() < 0.6:
        mask = [g.const(causal if g.rng.random() < 0.5 else np.where(causal, 0, -np.inf).astype(dtype))]
        more: dict[str, Any] = {"scale": float(depth**-0.5)} if g.rng.random() < 0.5 else {}
        more |= {"is_causal": 1} if g.rng.random() < 0.3 else {}
        made = g.put("Attention", [q, k, v, *(mask if g.rng.random() < 0.6 else [])], **more)
    else:
        root = g.const(depth**-0.25, dtype)
        q, k = g.put("Mul", [q, root]), g.put("Transpose", [k], perm=[0, 1, 3, 2])
        k = k and g.put("Mul", [k, root])
        made = q and k and g.put("MatMul", [q, k])
        if made and g.rng.random() < 0.6:
            made = g.put("Add", [made, g.const(np.where(causal, 0, -1e4).reshape(1, 1, length, length), dtype)])
        made = made and g.put("Softmax", [made], axis=-1)
        made = made and g.put("MatMul", [made, v])
    made = made and g.put("Transpose", [made], perm=[0, 2, 1, 3])
    return made and g.put("Reshape", [made, g.const([batch if g.rng.random() < 0.3 else 0, -1, heads * depth],
                                                    np.int64)])


def transformer(g: Graph) -> None:
    """Norm before or behind each half, attention, two or three products with an activation."""
    x = _tokens(g)
    if x is None:
        return
    width, before = g.values[x].shape[-1], g.rng.random() < 0.6
    given: str | None = x
    if g.rng.random() < 0.7:
        source = _norm(g, x) if before else x
        made = source and _heads(g, source)
        made = made and _linear(g, made, width)
        given = made and g.put("Add", [x, made] if g.rng.random() < 0.5 else [made, x])
        given = given and (given if before else _norm(g, given))
    source = given and (_norm(g, given) if before else given)
    wide = int(g.rng.choice([24, 64, 100]))
    inner = source and _linear(g, source, wide)
    inner = inner and _activated(g, inner)
    if inner and source and g.rng.random() < 0.4:
        gate = _linear(g, source, wide)
        inner = gate and g.put("Mul", [inner, gate])
    made = inner and _linear(g, inner, width)
    made = made and given and g.put("Add", [given, made])
    if made and not before:
        _norm(g, made)


def last_channels(g: Graph) -> None:
    """A depthwise convolution, its channels brought last, normalised and projected, brought back, added: ConvNeXt."""
    x = g.pick("f", 4)
    if x is None or g.values[x].ndim != 4 or g.values[x].dtype == np.float64 or not g.values[x].size:
        return
    channels, dtype = g.values[x].shape[1], g.values[x].dtype
    weight = g.const(g.rng.standard_normal((channels, 1, 3, 3)) / 3, dtype)
    made = g.put("Conv", [x, weight], group=channels, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    made = made and g.put("Transpose", [made], perm=[0, 2, 3, 1])
    made = _norm(g, made) if made and g.finite(made, 100) else None
    made = made and _linear(g, made, 2 * channels)
    made = made and _activated(g, made)
    made = made and _linear(g, made, channels)
    made = made and g.put("Mul", [g.const(g.rng.standard_normal(channels), dtype), made])
    made = made and g.put("Transpose", [made], perm=[0, 3, 1, 2])
    if made:
        g.put("Add", [x, made])


def pooled(g: Graph) -> None:
    """The end of a network: pooled, flattened, projected; the largest or the probabilities."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim > 4 or not g.values[x].size or not g.finite(x, 1e3):
        return
    made = g.put("GlobalAveragePool", [x]) if g.rng.random() < 0.6 else reduced(
        g, "ReduceMean", x, list(range(2, g.values[x].ndim)), 0)
    made = made and g.put("Flatten", [made])
    if not made:
        return
    classes = int(g.rng.choice([3, 10, 37]))
    weight = matrix(g, classes, g.values[made].shape[1], g.values[made].dtype)
    made = g.put("Gemm", [made, weight, g.const(g.rng.standard_normal(classes), g.values[made].dtype)], transB=1,
                 alpha=1.0, beta=1.0)
    if made and g.rng.random() < 0.6:
        g.put("Softmax", [made], axis=-1 if g.opset >= 11 else 1)


STEPS = (transformer, transformer, transformer, last_channels, pooled)
