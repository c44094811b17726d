"""Kernels compute what the definitions say: many operators in one compiled region against their numpy evaluation."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from tests.numeric.codegen.runner import run_region
from tests.numeric.ops import test_exact_operators as exact
from tests.numeric.ops import test_rounded_operators as rounded
from tests.numeric.ops.evaluate import bits, evaluate
from tests.numeric.ops.ort_cpu import every, pairs, values

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


BINARY: list[Use] = [("", name, {}, "float32")
                     for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Pow", "Mean")]
BINARY += [("", "Mod", {"fmod": 1}, "float32")]
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


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_division_of_pairs_of_integers(dtype: str) -> None:
    """Both ends of the range, 0 and -1 included: INT_MIN / -1 wraps. Divisors of 0 are errors, see computed places."""
    a, b = pairs(dtype, dtype)
    kept = b != 0
    uses: list[Use] = [("", "Div", {}, dtype), ("", "Mod", {}, dtype), ("", "Mod", {"fmod": 1}, dtype)]
    check(uses, [np.ascontiguousarray(a[kept]), np.ascontiguousarray(b[kept])], ulps=0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "uint64"])
def test_pairs_of_other_integers(dtype: str) -> None:
    check([(domain, name, attrs, dtype) for domain, name, attrs, _ in INTEGER] + COMPARE, list(pairs(dtype, dtype)),
          ulps=0)


def test_pairs_of_float64() -> None:
    uses = [(domain, name, attrs, "float64") for domain, name, attrs, _ in BINARY if name != "Pow"]
    check(uses + COMPARE, list(pairs("float64", "float64")), ulps=1)


def same_bits(ours: A, wide: A, dtype: np.dtype[Any], what: str) -> None:
    """`ours` is the float32 array `wide`, rounded half to even; bools and integers are equal."""
    with np.errstate(all="ignore"):
        rounded_once = wide.astype(dtype) if wide.dtype == np.float32 else wide
    if wide.dtype != np.float32:
        wrong = ours != rounded_once
    else:
        wrong = ours.view(np.uint16) != rounded_once.view(np.uint16)
        wrong &= ~(np.isnan(ours.astype(np.float32)) & np.isnan(wide))
    assert not wrong.any(), f"{what}: {ours[wrong][0]!r} where float32 gives {wide[wrong][0]!r}"


TO_INTEGERS: list[Use] = [("", "Cast", {"to": onnx_type(d)}, d) for d in CASTS if d not in ("float64", "float16")]
SIXTEEN = [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)]


@pytest.mark.parametrize("dtype", SIXTEEN, ids=lambda d: d.name)
@pytest.mark.parametrize("uses", [*split(UNARY, 12), TO_INTEGERS], ids=lambda uses: "-".join(u[1] for u in uses))
def test_every_value_of_16_bits(uses: list[Use], dtype: np.dtype[Any]) -> None:
    """All 65536, NaN, infinities and denormals among them: the float32 kernel of the widened value, rounded once."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    narrow = [(d, n, a, dtype.name if r == "float32" else r) for d, n, a, r in uses]
    results, wide = compiled(narrow, [x]), compiled(uses, [x.astype(np.float32)])
    for (_, name, _, _), ours, theirs in zip(uses, results, wide, strict=True):
        same_bits(ours, theirs, dtype, name)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int8", "uint8"])
def test_every_integer_of_8_and_16_bits(dtype: str) -> None:
    names = [name for name, dtypes in exact.UNARY.items() if dtype in dtypes]
    uses: list[Use] = [("", name, {}, dtype) for name in names]
    uses += [("", "Cast", {"to": onnx_type(target)}, target) for target in ("float32", *CASTS) if target != dtype]
    check(uses, [every(dtype)], ulps=0)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=lambda d: d.name)
def test_pairs_of_16_bits(dtype: np.dtype[Any]) -> None:
    """Sums, products and quotients beyond 65504 (or float32's range) are infinite in float16 (bfloat16)."""
    with np.errstate(all="ignore"):
        operands = [a.astype(dtype) for a in pairs("float32", "float32")]
    uses = BINARY + COMPARE
    narrow = [(d, n, a, dtype.name if r == "float32" else r) for d, n, a, r in uses]
    results, wide = compiled(narrow, operands), compiled(uses, [a.astype(np.float32) for a in operands])
    for (_, name, _, _), ours, theirs in zip(uses, results, wide, strict=True):
        same_bits(ours, theirs, dtype, name)
    if dtype == np.float16:
        beyond = (np.abs(wide[0]) > 65520) & np.isfinite(wide[0])
        assert beyond.any()
        assert np.isinf(results[0][beyond]).all()
