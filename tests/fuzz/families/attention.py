"""Attention with heads, masks and rotary tables as exporters write it, and the operators that stand for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def attention(g: Graph) -> None:
    """Softmax(modified Q K') V from one value or two, with heads, in one of the usual spellings."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype == np.float64 or min(g.values[x].shape) == 0:
        return
    dtype, (length, last) = g.values[x].dtype, g.values[x].shape[-2:]
    steep = float(g.rng.choice([1, 1, 1, 6]))  # so that some keys count for nothing
    heads, depth = int(g.rng.choice([1, 2, 4])), int(g.rng.choice([4, 8, 16]))
    shared = int(g.rng.choice([1, heads]))
    flat = g.put("Reshape", [x, g.const([-1, length, last], np.int64)])
    if flat is None:
        return

    def projected(count: int, perm: list[int]) -> str | None:
        weight = g.const(g.rng.standard_normal((last, count * depth)) * np.sqrt(steep / last), dtype)
        made = g.put("MatMul", [flat, weight])
        made = made and g.put("Reshape", [made, g.const([0, 0, count, depth], np.int64)])
        return made and g.put("Transpose", [made], perm=perm)

    q, k, v = projected(heads, [0, 2, 1, 3]), projected(shared, [0, 2, 3, 1]), projected(shared, [0, 2, 1, 3])
    if q is None or k is None or v is None:
        return
    if g.rng.random() < 0.4:
        q = g.put("Mul", [q, g.const(depth**-0.5, dtype)])
    scores = q and g.put("MatMul", [q, k])
    if not scores:
        return
    if g.rng.random() < 0.5:
        scores = g.put(*(("Div", [scores, g.const(depth**0.5, dtype)]) if g.rng.random() < 0.5 else
                         ("Mul", [scores, g.const(0.3, dtype)])))
    for _ in range(int(g.rng.integers(0, 3))):
        scores = scores and _modified(g, scores, length, dtype)
    weights = scores and g.put("Softmax", [scores], axis=-1 if g.rng.random() < 0.6 else 3)
    if weights and g.rng.random() < 0.15:
        weights = g.put("Where", [g.const(np.tril(np.ones((length, length), bool))), weights, g.const(0, dtype)])
    made = weights and g.put("MatMul", [weights, v])
    made = made and g.put("Transpose", [made], perm=[0, 2, 1, 3])
    if made and g.rng.random() < 0.8:
        g.put("Reshape", [made, g.const([0, 0, heads * depth], np.int64)])


def _modified(g: Graph, scores: str, length: int, dtype: Any) -> str | None:
    far = np.array(-np.inf if g.rng.random() < 0.5 else -1e4, dtype)
    causal = np.tril(np.ones((length, length), bool))
    window = causal & ~np.tril(np.ones((length, length), bool), -3)
    kind = int(g.rng.integers(8))
    if kind == 0:
        return g.put("Add", [scores, g.const(np.where(causal, 0, far).astype(dtype))])
    if kind == 1:
        return g.put("Where", [g.const(window), scores, g.const(far)])
    if kind == 2:
        softer = g.put("Tanh", [scores])
        return softer and g.put("Mul", [softer, g.const(5.0, dtype)])
    if kind == 3:
        return g.put("Add", [scores, g.const(g.rng.standard_normal((length, length)), dtype)])
    if kind == 4:
        masks = [n for n, v in g.values.items() if v.dtype == np.bool_ and v.shape[-1:] == (length,) and v.ndim <= 2]
        if masks:
            return g.put("Where", [str(g.rng.choice(masks)), scores, g.const(np.array(-1e4, dtype))])
    if kind == 5:
        return _padding(g, scores, dtype)
    hidden = g.put("CumSum", [g.const(np.ones(length, np.int64)), g.const(0, np.int64)])
    column = hidden and g.put("Unsqueeze", [hidden, g.const([1], np.int64)])
    keep = column and g.put("LessOrEqual", [hidden or "", column])
    return keep and g.put("Where", [keep, scores, g.const(far)])


def _padding(g: Graph, scores: str, dtype: Any) -> str | None:
    """(1 - attention_mask) * a large negative number, from an input of the model: [batch, keys] of int64."""
    batch, _, _, keys = g.values[scores].shape
    given = np.asarray(g.rng.random((batch, keys)) < 0.7).astype(np.int64)
    if keys:
        given[:, 0] = 1
    four = g.put("Unsqueeze", [g.input(given), g.const([1, 2], np.int64)])
    number = four and g.put("Cast", [four], to=10 if dtype == np.float16 else 1)
    rest = number and g.put("Sub", [g.const(1, dtype), number])
    penalty = rest and g.put("Mul", [rest, g.const(-1e4 if dtype == np.float16 else -3e38, dtype)])
    return penalty and g.put("Add", [scores, penalty])


def operator(g: Graph) -> None:
    """The operator Attention, RMSNormalization or RotaryEmbedding, of opset 23."""
    x = g.pick("f", 2)
    if x is None or g.opset < 23 or min(g.values[x].shape) == 0:
        return
    value, kind = g.values[x], g.rng.random()
    if kind < 0.3:
        axis = int(g.rng.integers(-value.ndim, value.ndim)) if g.rng.random() < 0.5 else -1
        more: dict[str, Any] = {"epsilon": 1e-3} if g.rng.random() < 0.4 else {}
        g.put("RMSNormalization", [x, g.const(g.rng.standard_normal(value.shape[axis:]), value.dtype)], axis=axis,
              **more)
    elif value.ndim in (3, 4) and kind < 0.55:
        _turned(g, x)
    elif value.ndim == 4:
        key = g.put("Tanh", [x])
        more = {"softcap": 2.0} if g.rng.random() < 0.3 else {}
        more |= {"scale": float(g.rng.choice([1.0, 0.125, 0.3]))} if g.rng.random() < 0.3 else {}
        inputs = [x, key or x, x]
        if g.rng.random() < 0.4:
            mask = g.rng.random((value.shape[2], value.shape[2])) < 0.6
            np.fill_diagonal(mask, True)
            inputs.append(g.const(mask if g.rng.random() < 0.5 else np.where(mask, 0, -3).astype(value.dtype)))
        if key is not None:
            g.put("Attention", inputs, is_causal=int(g.rng.random() < 0.4), **more)
    elif value.ndim == 3 and value.shape[-1] % 4 == 0:
        heads = int(g.rng.choice([2, 4]))
        g.put("Attention", [x, x, x], q_num_heads=heads, kv_num_heads=heads, is_causal=int(g.rng.random() < 0.5))


def _turned(g: Graph, x: str) -> None:
    """RotaryEmbedding of [batch, heads, positions, depth] or [batch, positions, heads * depth], of all of the depth or
    a part of it, by tables of each position or of all that there may be."""
    value = g.values[x]
    heads = 0 if value.ndim == 4 else int(g.rng.choice([1, 2]))
    depth, length = value.shape[-1] // max(heads, 1), value.shape[-2]
    if depth % 2 or value.shape[-1] % max(heads, 1) or not depth:
        return
    more: dict[str, Any] = {"num_heads": heads} if heads else {}
    if depth % 4 == 0 and g.rng.random() < 0.3:
        more["rotary_embedding_dim"] = depth // 2
        depth //= 2
    ids = g.rng.random() < 0.5
    lead = (length + 3,) if ids else (value.shape[0], length)
    tables = [g.const(g.rng.standard_normal((*lead, depth // 2)), value.dtype) for _ in range(2)]
    places = g.rng.integers(0, length + 3, size=(value.shape[0], length))
    where = [g.input(places) if g.rng.random() < 0.5 else g.const(places)] if ids else []
    g.put("RotaryEmbedding", [x, *tables, *where], interleaved=int(g.rng.random() < 0.3), **more)


def rotary(g: Graph) -> None:
    """Halves of the last axis turned round, one negated, times tables: as decoders write it."""
    x = g.pick("f", 2)
    if x is None or g.values[x].shape[-1] % 2 or not g.values[x].size or g.opset < 10:
        return
    value = g.values[x]
    half, axis = value.shape[-1] // 2, value.ndim - 1
    upper, lower = (g.put("Slice", [x, *(g.const([n], np.int64) for n in (a, b, axis))])
                    for a, b in ((half, 2**62), (0, half)))
    turned = upper and g.put("Neg", [upper])
    joined = turned and lower and g.put("Concat", [turned, lower], axis=-1)
    tables = [g.const(g.rng.standard_normal(value.shape[-2:]), value.dtype) for _ in range(2)]
    products = joined and [g.put("Mul", [a, t]) for a, t in zip((x, joined), tables, strict=True)]
    if products and all(products):
        g.put("Add", [str(p) for p in products])


def embedded(g: Graph) -> None:
    """Rows of a table by numbers that are an input of the model, and their positions' rows added."""
    shape = (int(g.rng.choice([1, 2])), g.shape[-2] if len(g.shape) > 1 else g.shape[-1])
    width, rows = int(g.rng.choice([8, 16, 33])), 11
    dtype = np.dtype(np.float32)
    ids = g.input(np.asarray(g.rng.integers(0, rows, size=shape)))
    words = g.put("Gather", [g.const(g.rng.standard_normal((rows, width)), dtype), ids])
    if words and g.rng.random() < 0.7:
        g.put("Add", [words, g.const(g.rng.standard_normal((shape[1], width)), dtype)])


STEPS = (attention, attention, operator, operator, rotary, embedded)
