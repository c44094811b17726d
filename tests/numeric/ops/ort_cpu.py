"""One operator on ONNX Runtime's CPU provider with optimizations off: the reference of the special-value tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

A = NDArray[Any]


class NotInOrt(Exception):
    """ONNX Runtime has no CPU kernel for this use of the operator."""


def run(
    op_type: str,
    inputs: Sequence[A | None],
    out_type: int,
    attrs: Mapping[str, Any] | None = None,
    domain: str = "",
    opset: int = 21,
    constants: Mapping[int, A] | None = None,
) -> A:
    """The node's first output. None: absent input; `constants`: inputs given as initializers. Raises NotInOrt."""
    constants = constants or {}
    names = ["" if a is None and i not in constants else f"i{i}" for i, a in enumerate(inputs)]
    feeds = {f"i{i}": a for i, a in enumerate(inputs) if a is not None and i not in constants}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    node = helper.make_node(op_type, names, ["y"], domain=domain, **(attrs or {}))
    graph = helper.make_graph(
        [node],
        "one_node",
        infos,
        [helper.make_tensor_value_info("y", out_type, None)],
        [onnx.numpy_helper.from_array(a, f"i{i}") for i, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "type" in str(error).lower():
            raise NotInOrt(str(error)) from error
        raise
    result: A = session.run(None, feeds)[0]
    return result


def floats(dtype: str, seed: int = 0) -> A:
    """NaN, infinities, zeros, denormals, range ends, thresholds of the implementations, and seeded random values."""
    info = np.finfo(dtype)
    tiny, small = float(info.smallest_subnormal), float(info.tiny)
    base = [0.0, tiny, 3 * tiny, small - tiny, small, 1e-5, 0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0, 1 + float(info.eps), 1.5]
    base += [
        2.0,
        2.5,
        3.0,
        3.5,
        np.pi,
        4.5,
        6.0,
        7.3,
        9.0,
        10.0,
        17.0,
        20.0,
        40.0,
        87.3,
        88.0,
        88.72,
        88.73,
        89.0,
        103.9,
    ]
    base += [104.0, 127.0, 128.0, 255.0, 256.0, 1000.0, 32767.0, 65504.0, 65520.0, 8388609.0, 1e10, 1e20, 1e30]
    base += [float(info.max) / 2, float(info.max), np.inf]
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=60) * np.exp2(rng.uniform(-20, 10, 60))
    values = np.array([*base, *(-v for v in base), np.nan, *spread])
    with np.errstate(all="ignore"):
        return np.concatenate([values, values]).astype(dtype)  # twice: vector body and scalar tail of ORT's loops


def every(dtype: str) -> A:
    """All values of a type of 8 or 16 bits, and `values` of the others."""
    size = np.dtype(dtype).itemsize
    if dtype == "bool" or size > 2:
        return values(dtype)
    return np.arange(256**size, dtype=f"u{size}").view(dtype)


def integers(dtype: str, seed: int = 0) -> A:
    """Range ends, values around 0 and powers of two, and seeded random values."""
    info = np.iinfo(dtype)
    wanted = [
        0,
        1,
        2,
        3,
        5,
        7,
        8,
        31,
        100,
        127,
        128,
        255,
        256,
        32767,
        65535,
        65536,
        2**24 + 1,
        2**31 - 1,
        2**31,
        2**53 + 1,
    ]
    wanted += [-v for v in wanted] + [info.min, info.min + 1, info.max, info.max - 1]
    inside = [v for v in wanted if info.min <= v <= info.max]
    rng = np.random.default_rng(seed)
    return np.concatenate([np.array(inside, dtype), rng.integers(info.min, info.max, 30, dtype, endpoint=True)])


def values(dtype: str, seed: int = 0) -> A:
    if dtype == "bool":
        return np.array([False, True, True, False, True])
    return floats(dtype, seed) if np.dtype(dtype).kind == "f" else integers(dtype, seed)


def pairs(first: str, second: str) -> tuple[A, A]:
    """Every value of `first` with every value of `second`."""
    a, b = np.meshgrid(np.unique(values(first)), np.unique(values(second, seed=1)), indexing="ij")
    a, b = a.reshape(-1), b.reshape(-1)
    # np.unique sorts -0 and +0 as equal and keeps one: put both back.
    if a.dtype.kind == "f" and b.dtype.kind == "f":
        z = np.array([0.0, -0.0, 0.0, -0.0, 1.0, -0.0])
        a = np.concatenate([a, z.astype(first)])
        b = np.concatenate([b, np.array([-0.0, 0.0, 0.0, -0.0, -0.0, 1.0]).astype(second)])
    return a, b
