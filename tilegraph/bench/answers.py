"""Whether a peer computes what the original computes. This is no `verify`: it only keeps out peers that compute
something else, such as lower precision or a wrong fusion, so its bounds are wide enough for any order of summation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilegraph.bench.engines import Array

# Of an output's largest value. Exact float32 engines stay below 1e-4, bfloat16 products start at 3e-3.
TOLERANCE = {"float64": 1e-6, "float32": 1e-3, "float16": 2e-2}
QUANTISED = 0.1  # one rounding to 8 bits that goes the other way moves everything behind it
_QUANTISING = ("Quantize", "QLinear", "MatMulInteger", "ConvInteger", "DynamicQuant", "MatMulNBits")


def quantised(model: Path) -> bool:
    """Whether the model's graph or one of its functions computes with quantised numbers."""
    import onnx

    loaded = onnx.load(model, load_external_data=False)
    nodes = [*loaded.graph.node, *(n for f in loaded.functions for n in f.node)]
    while nodes:
        node = nodes.pop()
        if any(part in node.op_type for part in _QUANTISING):
            return True
        for attribute in node.attribute:
            nodes += attribute.g.node
    return False


def difference(given: Sequence[Array], wanted: Sequence[Array], *, quantised: bool = False) -> tuple[float, str]:
    """The largest error of a float output, relative to its largest value, and why the answers are wrong ("" if right).

    Wrong are: another number of outputs, another shape, NaN or infinity elsewhere, an error above the bound, integers
    or bools that differ.
    """
    if len(given) != len(wanted):
        return float("nan"), f"{len(given)} outputs, the original has {len(wanted)}"
    worst = 0.0
    for i, (a, b) in enumerate(zip(given, wanted, strict=True)):
        if a.shape != b.shape:
            return float("nan"), f"output {i} has shape {list(a.shape)}, the original's {list(b.shape)}"
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return worst, f"output {i} ({b.dtype}) differs in {np.count_nonzero(a != b)} of {b.size} elements"
            continue
        x, y = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isnan(x), np.isnan(y)) or not np.array_equal(x[np.isinf(x)], y[np.isinf(y)]) \
                or not np.array_equal(np.isinf(x), np.isinf(y)):
            return float("nan"), f"output {i} has NaN or infinity where the original has none, or the other way round"
        finite = np.isfinite(y)
        scale = float(np.max(np.abs(y[finite]), initial=0.0))
        error = float(np.max(np.abs(x[finite] - y[finite]), initial=0.0))
        worst = max(worst, error / scale if scale else error)
        bound = max(TOLERANCE.get(b.dtype.name, 2e-2), QUANTISED if quantised else 0.0)
        if error > bound * scale:
            return worst, f"output {i} is {error / scale if scale else error:.2g} of its largest value away, " \
                          f"{bound:.2g} is allowed"
    return worst, ""
