"""Kernels compute what the definitions say: many operators in one compiled region against their numpy evaluation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from tests.numeric.codegen.runner import run_region
from tests.numeric.ops import test_exact_operators as exact
from tests.numeric.ops import test_rounded_operators as rounded
from tests.numeric.ops.evaluate import bits, evaluate
from tests.numeric.ops.ort_cpu import pairs, values

A = NDArray[Any]
Use = tuple[str, str, dict[str, Any], str]  # domain, op_type, attributes, result dtype

warnings.filterwarnings("ignore", category=RuntimeWarning)


def value(name: str, a: A) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(a.dtype)), shape=ir.Shape(a.shape))


def compiled(uses: list[Use], operands: list[A]) -> list[A]:
    """One region with one node for each use, all of the same operands."""
    inputs = [value(f"x{i}", a) for i, a in enumerate(operands)]
    nodes, outputs = [], []
    for k, (domain, op_type, attrs, dtype) in enumerate(uses):
        y = value(f"y{k}", np.empty(operands[0].shape, dtype))
        nodes.append(ir.Node(domain, op_type, inputs, ir.convenience.convert_attributes(attrs), outputs=[y]))
        outputs.append(y)
    results, _, _ = run_region(nodes, outputs, {v.name or "": a for v, a in zip(inputs, operands, strict=True)}, 24)
    return list(results)


def check(uses: list[Use], operands: list[A], ulps: float) -> None:
    """NaN, infinities and signs of zero as in numpy; numbers within `ulps` (the fma of a kernel rounds once)."""
    for (domain, op_type, attrs, dtype), theirs in zip(uses, compiled(uses, operands), strict=True):
        ours = evaluate(op_type, operands, dtype, attrs, domain, 24)
        wrong = bits(ours) != bits(theirs)
        if ours.dtype.kind == "f":
            with np.errstate(all="ignore"):
                # x Phi(x) cancels below 0: there the argument is the scale, as for ONNX Runtime's own error.
                scale = np.maximum(np.abs(ours), np.abs(operands[0])) if "Gelu" in op_type else np.abs(ours)
                step = np.spacing(scale).astype(np.float64)
                near = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) <= ulps * step
            finite = np.isfinite(ours) & np.isfinite(theirs)
            tiny = np.finfo(ours.dtype).smallest_subnormal
            signs = (np.signbit(ours) == np.signbit(theirs)) | (np.maximum(np.abs(ours), np.abs(theirs)) > 0)
            signs |= (np.abs(operands[0]) <= tiny) & (operands[0] != 0)  # a result of half a denormal step
            wrong &= ~(finite & near & signs)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise AssertionError(
                f"{op_type} {attrs} of {[a[at] for a in operands]}: kernel {theirs[at]!r}, definition {ours[at]!r}"
            )


def split(uses: list[Use], size: int = 8) -> list[list[Use]]:
    return [uses[i : i + size] for i in range(0, len(uses), size)]


UNARY: list[Use] = [("", name, {}, "float32") for name, dtypes in exact.UNARY.items() if "float32" in dtypes]
UNARY += [(c.domain, c.op_type, c.attrs, "float32") for c in rounded.UNARY]
UNARY += [("", "IsNaN", {}, "bool"), ("", "IsInf", {}, "bool"), ("", "IsInf", {"detect_negative": 0}, "bool")]
CASTS = ["float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]


def onnx_type(dtype: str) -> int:
    return ir.DataType.from_numpy(np.dtype(dtype)).value


@pytest.mark.parametrize("uses", split(UNARY), ids=lambda uses: "-".join(u[1] for u in uses))
def test_float32(uses: list[Use]) -> None:
    check(uses, [values("float32")], ulps=3)


@pytest.mark.parametrize("target", CASTS)
def test_casts(target: str) -> None:
    check([("", "Cast", {"to": onnx_type(target)}, target)], [values("float32")], ulps=0)


BINARY: list[Use] = [("", name, {}, "float32") for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow")]
COMPARE: list[Use] = [("", n, {}, "bool") for n in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")]


@pytest.mark.parametrize("uses", [BINARY, COMPARE], ids=["arithmetic", "comparisons"])
def test_pairs_of_float32(uses: list[Use]) -> None:
    check(uses, list(pairs("float32", "float32")), ulps=1)


INTEGER: list[Use] = [
    ("", n, {}, "") for n in ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_pairs_of_integers(dtype: str) -> None:
    uses = [(domain, name, attrs, dtype) for domain, name, attrs, _ in INTEGER]
    uses += COMPARE
    if dtype == "uint8":
        uses += [("", "BitShift", {"direction": d}, dtype) for d in ("LEFT", "RIGHT")]
    check(uses, list(pairs(dtype, dtype)), ulps=0)
