"""The numbers that random graphs are run on."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 37, 64)
FLOATS = ("float32", "float32", "float32", "float32", "float16", "float64")
INTEGERS = ("int64", "int64", "int32", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")


def random_values(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any], special: bool) -> Array:
    """Normal floats, small or all integers; `special`: NaN, infinities, zeros, subnormals and large numbers among."""
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        low, high = (max(ends.min, -9), 9) if rng.random() < 0.7 else (ends.min, ends.max)
        return np.asarray(rng.integers(low, high, size=shape, dtype=dtype.type, endpoint=True))
    made = np.asarray(rng.standard_normal(shape)).astype(dtype)
    if special and made.size:
        limits = np.finfo(dtype)
        # Not the largest ones: kernels round a product and a sum of it once, so that the sum of two such products
        # may be finite where ONNX Runtime's leaves the range on the way.
        odd = np.array([np.nan, np.inf, -np.inf, 0, -0.0, limits.tiny, -limits.smallest_subnormal, 1e4, -1e4, 88.7,
                        -104], dtype)
        flat = made.reshape(-1)
        at = rng.integers(made.size, size=max(1, made.size // 5))
        flat[at] = rng.choice(odd, size=at.size)
    return made
