"""Steps of random graphs that are more than one plain operator: products, images, attention, control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

WIDTHS = (1, 3, 8, 16, 33, 48, 67)
SOFTENING = ("Tanh", "Sigmoid", "Relu", "Erf", "Abs")


def gemm(g: Graph) -> None:
    x = g.pick("f", 2)
    if x is None:
        return
    value = g.values[x]
    if value.ndim > 2:
        flat = g.put("Flatten", [x], axis=int(g.rng.integers(1, value.ndim)))
        if flat is None:
            return
        x, value = flat, g.values[flat]
    turned_a, turned_b = int(g.rng.random() < 0.2), int(g.rng.random() < 0.5)
    depth, width = value.shape[0 if turned_a else 1], int(g.rng.choice(WIDTHS))
    weight = g.rng.standard_normal((width, depth) if turned_b else (depth, width)) / np.sqrt(max(depth, 1))
    inputs = [x, g.const(weight, value.dtype)]
    if g.rng.random() < 0.7:
        shape = [[width], [1, width], [1], []][int(g.rng.integers(4))]
        inputs.append(g.const(g.rng.standard_normal(shape), value.dtype))
    more = {"alpha": 0.5} if g.rng.random() < 0.2 else {}
    more |= {"beta": 1.5} if g.rng.random() < 0.2 else {}
    made = g.put("Gemm", inputs, transA=turned_a, transB=turned_b, **more)
    if made is not None and g.rng.random() < 0.6:
        g.put(str(g.rng.choice(SOFTENING)), [made])


def einsum(g: Graph) -> None:
    x = g.pick("f", 2)
    if x is None or g.values[x].ndim != 3:
        return
    a, b, c = g.values[x].shape
    equation, shape = [("abc,cd->abd", (c, 4)), ("abc,bd->acd", (b, 3)), ("abc,adc->abd", (a, 5, c)),
                       ("abc,abd->acd", (a, b, 2))][int(g.rng.integers(4))]
    g.put("Einsum", [x, g.const(g.rng.standard_normal(shape), g.values[x].dtype)], equation=equation)


def image(g: Graph) -> None:
    """A convolution, a window or a change of size on something of rank 3 or 4."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim > 4:
        return
    value = g.values[x]
    spatial, channels = value.ndim - 2, value.shape[1]
    kind = str(g.rng.choice(["conv", "conv", "transposed", "MaxPool", "AveragePool", "GlobalAveragePool",
                             "GlobalMaxPool", "batch", "resize", "depth", "instance", "group"]))
    kernel = [int(k) for k in g.rng.choice([1, 2, 3, 5], size=spatial)]
    strides = [int(s) for s in g.rng.choice([1, 1, 2, 3], size=spatial)]
    pads = [int(p) for p in g.rng.integers(0, 3, size=2 * spatial)]
    if kind in ("conv", "transposed"):
        group = int(g.rng.choice([1, 1, channels])) if channels else 1
        wide = int(g.rng.choice([1, 2, 8, 16])) * (group if group > 1 else 1)
        op, shape = "Conv", (wide, channels // max(group, 1), *kernel)
        if kind == "transposed":
            op, shape = "ConvTranspose", (channels, max(1, wide // group), *kernel)
        weight = g.rng.standard_normal(shape) / np.sqrt(max(1, int(np.prod(shape[1:]))))
        inputs = [x, g.const(weight, value.dtype)]
        if g.rng.random() < 0.6:
            inputs.append(g.const(g.rng.standard_normal(wide), value.dtype))
        wider = [int(d) for d in g.rng.choice([1, 1, 1, 2], size=spatial)]
        made = g.put(op, inputs, group=group, strides=strides, pads=pads, dilations=wider)
        if made is not None and g.rng.random() < 0.6:
            made = g.put(str(g.rng.choice(SOFTENING)), [made])
        if made is not None and g.values[made].shape == value.shape and g.rng.random() < 0.6:
            g.put("Add", [made, x])
    elif kind in ("MaxPool", "AveragePool"):
        more: dict[str, Any] = {"count_include_pad": 1} if kind == "AveragePool" and g.rng.random() < 0.5 else {}
        pads = [min(p, k - 1) for p, k in zip(pads, kernel * 2, strict=True)]
        g.put(kind, [x], kernel_shape=kernel, strides=strides, pads=pads, ceil_mode=int(g.rng.random() < 0.3), **more)
    elif kind.startswith("Global"):
        g.put(kind, [x])
    elif kind == "resize":
        scales = [1.0, 1.0, *(float(s) for s in g.rng.choice([1.0, 2.0, 3.0], size=spatial))]
        g.put("Resize", [x, "", g.const(scales, np.float32)], mode=str(g.rng.choice(["nearest", "linear"])),
              coordinate_transformation_mode=str(g.rng.choice(["asymmetric", "half_pixel"])), nearest_mode="floor")
    elif kind == "depth" and spatial == 2:
        g.put(str(g.rng.choice(["DepthToSpace", "SpaceToDepth"])), [x], blocksize=2)
    elif kind == "instance":
        g.put("InstanceNormalization", [x, *(g.const(g.rng.standard_normal(channels), value.dtype) for _ in range(2))])
    elif kind == "group" and channels % 2 == 0 and channels:
        g.put("GroupNormalization", [x, *(g.const(g.rng.standard_normal(channels if g.opset >= 21 else 2), value.dtype)
                                          for _ in range(2))], num_groups=2)
    elif kind == "batch":
        four = [g.rng.standard_normal(channels) for _ in range(3)] + [g.rng.random(channels) + 0.5]
        g.put("BatchNormalization", [x, *(g.const(v, value.dtype) for v in four)])


def attention(g: Graph) -> None:
    """Softmax(modified Q K') V from one value or two, with heads, in one of the usual spellings."""
    x = g.pick("f", 2)
    if x is None or g.values[x].dtype == np.float64 or min(g.values[x].shape) == 0:
        return
    dtype, (length, last) = g.values[x].dtype, g.values[x].shape[-2:]
    heads, depth = int(g.rng.choice([1, 2, 4])), int(g.rng.choice([4, 8, 16]))
    shared = int(g.rng.choice([1, heads]))
    flat = g.put("Reshape", [x, g.const([-1, length, last], np.int64)])
    if flat is None:
        return

    def projected(count: int, perm: list[int]) -> str | None:
        weight = g.const(g.rng.standard_normal((last, count * depth)) / np.sqrt(last), dtype)
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
    kind = int(g.rng.integers(6))
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
    hidden = g.put("CumSum", [g.const(np.ones(length, np.int64)), g.const(0, np.int64)])
    column = hidden and g.put("Unsqueeze", [hidden, g.const([1], np.int64)])
    keep = column and g.put("LessOrEqual", [hidden or "", column])
    return keep and g.put("Where", [keep, scores, g.const(far)])


def operator(g: Graph) -> None:
    """The operator Attention, or RMSNormalization, of opset 23."""
    x = g.pick("f", 2)
    if x is None or g.opset < 23 or min(g.values[x].shape) == 0:
        return
    value = g.values[x]
    if g.rng.random() < 0.4:
        g.put("RMSNormalization", [x, g.const(g.rng.standard_normal(value.shape[-1]), value.dtype)])
    elif value.ndim == 4:
        key = g.put("Tanh", [x])
        if key is not None:
            g.put("Attention", [x, key, x], is_causal=int(g.rng.random() < 0.5),
                  **({"softcap": 2.0} if g.rng.random() < 0.3 else {}))


def branch(g: Graph) -> None:
    """An If whose branches read the outer value; the condition depends on the inputs, or is a constant."""
    x = g.pick("f", 1)
    if x is None or g.values[x].size == 0:
        return
    kind, k = helper.np_dtype_to_tensor_dtype(g.values[x].dtype), len(g.nodes)

    def body(name: str, first: str, second: str) -> onnx.GraphProto:
        nodes = [helper.make_node(first, [x], [f"b{k}{name}_a"], name=f"b{k}{name}0"),
                 helper.make_node(second, [f"b{k}{name}_a", x], [f"b{k}{name}_b"], name=f"b{k}{name}1")]
        return helper.make_graph(nodes, f"b{k}{name}", [], [helper.make_tensor_value_info(f"b{k}{name}_b", kind, None)])

    if g.rng.random() < 0.3:
        condition: str | None = g.const(bool(g.rng.random() < 0.5))
    elif x in g.rounded:
        return
    else:
        axes = list(range(g.values[x].ndim))
        peak = (g.put("ReduceMax", [x, g.const(axes, np.int64)], keepdims=0) if g.opset >= 18 else
                g.put("ReduceMax", [x], axes=axes, keepdims=0))
        condition = peak and g.put("Greater", [peak, g.const(0.5, g.values[x].dtype)])
    if condition:
        g.put("If", [condition], then_branch=body("t", "Tanh", "Mul"), else_branch=body("e", "Sigmoid", "Sub"))


def loop(g: Graph) -> None:
    """A Loop that carries a value, reads one from outside and collects its states, or a Scan over the first axis."""
    x = g.pick("f", 1)
    if x is None or g.values[x].shape[0] == 0:
        return
    value, k = g.values[x], len(g.nodes)
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    if g.rng.random() < 0.5:
        nodes = [helper.make_node("Sub", [f"l{k}s", x], [f"l{k}a"], name=f"l{k}0"),
                 helper.make_node("Tanh", [f"l{k}a"], [f"l{k}b"], name=f"l{k}1"),
                 helper.make_node("Add", [f"l{k}b", x], [f"l{k}t"], name=f"l{k}2"),
                 helper.make_node("Identity", [f"l{k}c"], [f"l{k}d"], name=f"l{k}3"),
                 helper.make_node("Sigmoid", [f"l{k}t"], [f"l{k}y"], name=f"l{k}4")]
        flag = onnx.TensorProto.BOOL
        body = helper.make_graph(nodes, f"l{k}", [
            helper.make_tensor_value_info(f"l{k}i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info(f"l{k}c", flag, []),
            helper.make_tensor_value_info(f"l{k}s", kind, None)],
            [helper.make_tensor_value_info(f"l{k}d", flag, []),
             helper.make_tensor_value_info(f"l{k}t", kind, None),
             helper.make_tensor_value_info(f"l{k}y", kind, None)])
        g.put("Loop", [g.const(int(g.rng.integers(1, 4)), np.int64), g.const(True), x], outputs=2, body=body)
        return
    slice_shape = list(value.shape[1:])
    zero = g.const(np.zeros(slice_shape), value.dtype)
    nodes = [helper.make_node("Add", [f"n{k}s", f"n{k}x"], [f"n{k}a"], name=f"n{k}0"),
             helper.make_node("Tanh", [f"n{k}a"], [f"n{k}t"], name=f"n{k}1"),
             helper.make_node("Mul", [f"n{k}t", f"n{k}x"], [f"n{k}y"], name=f"n{k}2")]
    body = helper.make_graph(nodes, f"n{k}", [helper.make_tensor_value_info(f"n{k}{n}", kind, None) for n in "sx"],
                             [helper.make_tensor_value_info(f"n{k}{n}", kind, None) for n in "ty"])
    g.put("Scan", [zero, x], outputs=2, num_scan_inputs=1, body=body)


def rotary(g: Graph) -> None:
    """Halves of the last axis turned round, one negated, times tables: as decoders write it."""
    x = g.pick("f", 2)
    if x is None or g.values[x].shape[-1] % 2 or not g.values[x].size:
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


BLOCKS: tuple[Callable[[Graph], None], ...] = (gemm, gemm, einsum, image, image, attention, attention, operator, branch,
                                               loop, rotary)
