"""Which operators on which values have one right answer.

Where sums overflow, or an infinity meets its opposite on the way, the order of the operands decides between far
results, in ONNX Runtime as well: such nodes are left out of random graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# What ONNX Runtime makes of NaN here depends on layout, vector width and dtype; ours propagate it.
CHOOSING = frozenset({"ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool", "GlobalMaxPool", "Softmax", "LogSoftmax",
                      "ReduceLogSumExp", "Hardmax", "TopK"})
SUMS = frozenset({"ReduceSum", "ReduceMean", "ReduceL1", "ReduceLogSum", "CumSum"})
SQUARES = frozenset({"ReduceL2", "ReduceSumSquare"})
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "AveragePool",
                      "GlobalAveragePool", "LayerNormalization", "RMSNormalization", "InstanceNormalization",
                      "GroupNormalization", "LpNormalization", "BatchNormalization", "Resize",
                      "MeanVarianceNormalization", "LRN", "LpPool", "GridSample", "LSTM", "GRU", "RNN", "FusedMatMul",
                      "MatMulNBits", "MultiHeadAttention", "GroupQueryAttention", "SkipLayerNormalization",
                      "SkipSimplifiedLayerNormalization", "RotaryEmbedding"})
CHANNELS = frozenset({"InstanceNormalization", "GroupNormalization"})
CENTRED = CHANNELS | {"LayerNormalization", "MeanVarianceNormalization"}
# Where the last bit of an operand decides between far results: only on values that nobody rounds.
JUMPING = frozenset({"Floor", "Ceil", "Round", "Sign", "Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual",
                     "Mod", "ArgMax", "ArgMin", "ThresholdedRelu", "IsInf", "IsNaN", "Hardmax", "TopK",
                     "QuantizeLinear", "DynamicQuantizeLinear", "Shrink", "NonZero"})
EXACT = frozenset({"Abs", "Neg", "Relu", "Identity", "Not", "Max", "Min", "Where", "ReduceMax", "ReduceMin", "Clip",
                   "Reshape", "Pad", "Transpose", "Slice", "Concat", "Split", "Expand", "Tile", "Gather", "Squeeze",
                   "Unsqueeze", "Floor", "Ceil", "Round", "Sign", "Flatten", "DepthToSpace", "SpaceToDepth", "Trilu",
                   "MaxPool", "GlobalMaxPool", "Dropout", "GatherElements", "GatherND", "CenterCropPad",
                   "ReverseSequence", "Compress", "TopK"})


def one_answer(op: str, operands: Sequence[Array]) -> bool:
    """Whether every order of the operator's sums gives the same, but for rounding."""
    floats = [v for v in operands if v.dtype.kind == "f" and v.size]
    if op in ("Einsum", "InstanceNormalization") and not all(v.size for v in operands):
        return False  # ONNX Runtime's process dies of them
    if op in ("MatMulInteger", "QLinearMatMul") and not all(v.size for v in operands):
        return False  # ONNX Runtime leaves the result as the memory was
    if op in CHOOSING:
        return not any(np.isnan(v).any() for v in floats)
    if op == "ReduceProd":
        return all(_product_stays(v) for v in floats)
    if op in PRODUCTS:
        return all(np.isfinite(v).all() for v in floats) and all(_sum_stays(v, 2) for v in floats)
    if op in SUMS or op in SQUARES:
        return all(_sum_stays(v, 2 if op in SQUARES else 1) for v in floats)
    return True


def levelled(op: str, operands: Sequence[Array]) -> bool:
    """Whether rows are normalised that are nearly one number in their 16 bits: where their last bits, which ONNX
    Runtime does not round between operators that it computes in float32, decide all."""
    v = operands[0] if operands else np.zeros(0)
    if op not in CENTRED or v.dtype != np.float16 or not v.size:
        return False
    rows = v.astype(np.float64).reshape(*v.shape[:2], -1) if op in CHANNELS else v.astype(np.float64)
    return bool((rows.std(-1) < 32 * float(np.finfo(np.float16).eps) * np.abs(rows).max(-1)).any())


def _sum_stays(v: Array, power: int) -> bool:
    """Whether the finite elements' sum of |x|^power stays inside the type."""
    with np.errstate(all="ignore"):
        finite = np.abs(v[np.isfinite(v)].astype(np.longdouble)) ** power
    return bool(finite.sum() < float(np.finfo(v.dtype).max) / 8)


def _product_stays(v: Array) -> bool:
    """Whether no partial product of the finite elements leaves the normal numbers, in whatever order."""
    finite = np.abs(v[np.isfinite(v) & (v != 0)].astype(np.float64))
    return bool(np.abs(np.log(finite)).sum() < -np.log(float(np.finfo(v.dtype).tiny)) - 2)
