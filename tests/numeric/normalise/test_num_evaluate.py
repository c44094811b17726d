"""Each op that folding evaluates, against ONNX Runtime: bitwise, except functions that no standard rounds.

Transcendental functions and float reductions: within 4 eps of the type relative to the magnitude of the element (of
the largest for reductions), and NaN and infinities where ONNX Runtime has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from norm_ort import run
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilegraph.rewrites.normalise.evaluate import _DIRECT, STRUCTURAL, CannotEvaluate, evaluate

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.nan, np.inf, -np.inf, 1e-40, 3e38, -7.25])
PLAIN = np.array([0.25, -0.75, 1.0, 2.0, -3.5, 0.0, 5.0, -0.125])


def floats(dtype: type = np.float32, values: Array = SPECIAL) -> Array:
    with np.errstate(over="ignore"):
        return np.concatenate([values, RNG.normal(0, 3, 33)]).astype(dtype)


def ints(dtype: type = np.int64, low: int = -9, high: int = 10, size: int = 48) -> Array:
    return RNG.integers(max(low, np.iinfo(dtype).min), high, size).astype(dtype)


def both(op: str, inputs: list[Array | None], *, opset: int = 17, outputs: int = 1, **attributes: Any) -> None:
    check(op, inputs, lambda a, b: np.testing.assert_array_equal(a, b), opset=opset, outputs=outputs, **attributes)


def check(op: str, inputs: list[Array | None], compare: Callable[[Array, Array], None], *, opset: int = 17,
          outputs: int = 1, **attributes: Any) -> None:
    inputs = [None if v is None else np.asarray(v) for v in inputs]
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    produced = [f"o{k}" for k in range(outputs)]
    proto = helper.make_node(op, names, produced, **attributes)
    graph = helper.make_graph(
        [proto], "g",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for n, v in zip(names, inputs, strict=True) if v is not None],
        [onnx.ValueInfoProto(name=n) for n in produced])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    expected = run(model, {n: v for n, v in zip(names, inputs, strict=True) if v is not None})
    node = next(iter(ir.from_proto(model).graph))
    dtypes = [None if v is None else ir.DataType.from_numpy(v.dtype) for v in inputs]
    actual = evaluate(node, inputs, dtypes, opset)
    assert len(actual) == outputs
    for name, found in zip(produced, actual, strict=True):
        want = expected[name]
        assert (found.dtype, found.shape) == (want.dtype, want.shape), op
        compare(found, want)
        if found.dtype.kind == "f":  # assert_array_equal takes -0.0 for 0.0
            zeros = (want == 0) & (found == 0)
            np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(want[zeros]), err_msg=op)


def close(found: Array, want: Array) -> None:
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(found[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)])
    eps = np.finfo(want.dtype).eps
    np.testing.assert_allclose(found[finite], want[finite], rtol=4 * eps, atol=eps * np.finfo(want.dtype).tiny / eps)


def close_to_one(found: Array, want: Array) -> None:
    """ONNX Runtime's sigmoid is accurate to an eps of 1, not of the result."""
    np.testing.assert_allclose(found, want, rtol=0, atol=np.finfo(want.dtype).eps)


def close_to_largest(found: Array, want: Array) -> None:
    scale = np.abs(want).max(initial=1)
    np.testing.assert_allclose(found, want, rtol=0, atol=4 * np.finfo(want.dtype).eps * scale)


BINARY = ("Add", "Sub", "Mul", "Div")
COMPARE = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
LOGIC = ("And", "Or", "Xor")
EXACT_UNARY = ("Identity", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Sqrt", "Reciprocal", "Relu", "IsNaN",
               "IsInf")
FUNCTIONS = ("Exp", "Log", "Sin", "Cos", "Tan", "Tanh", "Erf", "Sigmoid", "Sinh", "Cosh", "Atan")
VARIADIC = ("Max", "Min", "Sum")
REDUCE = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin")
OTHER = ("BatchNormalization", "Mod", "Pow", "BitShift", "Not", "Where", "Clip", "Cast", "CastLike", "MatMul",
         "GatherElements")


def test_every_evaluated_op_is_tested_here() -> None:
    tested = {*BINARY, *COMPARE, *LOGIC, *EXACT_UNARY, *FUNCTIONS, *VARIADIC, *REDUCE, *OTHER}
    assert tested | {name for name, *_ in STRUCTURE} == {*_DIRECT, *STRUCTURAL}
    assert not set(_DIRECT) & STRUCTURAL


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_arithmetic_of_floats(op: str, dtype: type) -> None:
    a = floats(dtype)
    both(op, [a[:, None], a[None, :]])


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_arithmetic_of_integers(op: str, dtype: type) -> None:
    a, b = ints(dtype), ints(dtype)
    both(op, [a[:, None], np.where(b == 0, 3, b)[None, :].astype(dtype)])


@pytest.mark.parametrize("op", COMPARE)
@pytest.mark.parametrize("make", [floats, ints])
def test_comparisons(op: str, make: Callable[[], Array]) -> None:
    a = make()
    both(op, [a[:, None], a[None, :]])


@pytest.mark.parametrize("op", LOGIC)
def test_logic(op: str) -> None:
    a = np.array([True, False])
    both(op, [a[:, None], a[None, :]])


def test_not() -> None:
    both("Not", [np.array([[True, False]])])


@pytest.mark.parametrize("op", EXACT_UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_functions(op: str, dtype: type) -> None:
    if op == "Sign":
        both(op, [floats(dtype, PLAIN)])  # of NaN: ONNX Runtime gives 0, the standard does not say
    else:
        both(op, [floats(dtype)])


@pytest.mark.parametrize("op", ["Neg", "Abs", "Sign", "Identity"])
def test_exact_functions_of_integers(op: str) -> None:
    both(op, [ints(np.int64)])
    both(op, [ints(np.int32)])


@pytest.mark.parametrize(("positive", "negative"), [(1, 0), (0, 1), (0, 0)])
def test_is_inf(positive: int, negative: int) -> None:
    both("IsInf", [floats()], detect_positive=positive, detect_negative=negative)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions(op: str) -> None:
    # Of large arguments ONNX Runtime's own single-precision sine is far off: keep to where it is meant.
    values = floats(np.float32, PLAIN if op in ("Sin", "Cos", "Tan", "Sinh", "Cosh") else SPECIAL)
    check(op, [np.abs(values) if op == "Log" else values], close_to_one if op == "Sigmoid" else close)


@pytest.mark.parametrize("shape", [(1, 5, 27), (2, 5, 3, 4), (7, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x, *given = (RNG.normal(1, 2, n).astype(np.float32) for n in (shape, 5, 5, 5))
    given.append(np.float32([0.5, 2, 1, 3, 4]))
    check("BatchNormalization", [x, *given], lambda a, b: np.testing.assert_allclose(a, b, atol=8e-6), epsilon=1e-3)
    # ONNX Runtime trains with three outputs only: the standard's reference, then.
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float x, float s, float b, float m, float v) => (float y) {
            y, n, w = BatchNormalization <training_mode = 1, epsilon = 0.001> (x, s, b, m, v) }""")
    (wanted,) = ReferenceEvaluator(proto).run(None, dict(zip("xsbmv", [x, *given], strict=True)))
    node = next(iter(ir.from_proto(proto).graph))
    (found,) = evaluate(node, [x, *given], [ir.DataType.FLOAT] * 5, 17)
    np.testing.assert_allclose(found, wanted, atol=8e-6)
    proto.graph.output.append(onnx.ValueInfoProto(name="n"))
    with pytest.raises(CannotEvaluate, match="statistics"):
        evaluate(next(iter(ir.from_proto(proto).graph)), [x, *given], [ir.DataType.FLOAT] * 5, 17)


@pytest.mark.parametrize("op", VARIADIC)
def test_variadic(op: str) -> None:
    a = floats()
    both(op, [a[:, None], a[None, :], a[:, None]])
    both(op, [floats(np.float32, PLAIN)])


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_variadic_of_integers(op: str) -> None:
    both(op, [ints()[:, None], ints()[None, :]])


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op: str, keepdims: int) -> None:
    rng = np.random.default_rng(11)  # of its own: the values do not depend on the tests that run before
    x = rng.normal(0, 1, (3, 4, 5)).astype(np.float32)
    axes = np.array([1, -1])

    def along(over: tuple[int, ...] | None) -> Callable[[Array, Array], None]:
        """Any order of n terms is off by (n - 1) u of the sum (product) of magnitudes, u = eps / 2 (Higham, Accuracy
        and Stability of Numerical Algorithms, 4.2); two orders by twice that. A mean rounds twice more on each side."""
        def compare(found: Array, want: Array) -> None:
            sizes = np.abs(x.astype(np.float64))
            n = x.size // sizes.sum(over).size
            scale, steps = {"ReduceSum": (sizes.sum(over), n - 1), "ReduceMean": (sizes.mean(over), n + 1),
                            "ReduceProd": (sizes.prod(over), n - 1)}.get(op, (np.zeros(()), 0))
            off = np.abs(found.astype(np.float64) - want).reshape(-1)
            assert (off <= steps * float(np.finfo(np.float32).eps) * scale.reshape(-1)).all(), op
        return compare

    if op == "ReduceSum":
        check(op, [x, axes], along((1, 2)), keepdims=keepdims)
        both(op, [rng.integers(-100, 100, (4, 12)), np.array([1])], keepdims=keepdims)
        both(op, [x], keepdims=keepdims, noop_with_empty_axes=1)
    else:
        check(op, [x], along((1, 2)), axes=[1, -1], keepdims=keepdims)
        check(op, [x, axes], along((1, 2)), opset=18, keepdims=keepdims)
        if op != "ReduceMean":
            both(op, [rng.integers(1, 4, (4, 3))], axes=[0], keepdims=keepdims)
    check(op, [x], along(None), keepdims=keepdims)


def test_mod() -> None:
    a, b = ints()[:, None], ints(np.int64, 1, 7)[None, :]
    for sign in (1, -1):
        both("Mod", [a, b * sign])
        both("Mod", [a, b * sign], fmod=1)
    both("Mod", [floats(np.float32, PLAIN)[:, None], np.array([[2.5, -3.0]], np.float32)], fmod=1)


def test_pow() -> None:
    base, exponent = np.abs(floats(np.float32, PLAIN)), np.array([[0.0], [0.5], [2.0], [-1.0], [3.0]], np.float32)
    check("Pow", [base, exponent], close)
    check("Pow", [floats(np.float32, PLAIN), np.array([[2], [3]], np.int64)], close)
    both("Pow", [ints(np.int64), np.array([[0], [1], [2], [3]], np.int64)])


def test_bit_shift() -> None:
    for direction in ("LEFT", "RIGHT"):
        both("BitShift", [ints(np.uint8, 0, 255), ints(np.uint8, 0, 8)], direction=direction)


def test_where() -> None:
    # ONNX Runtime adds the two sides up, which turns a chosen -0.0 into 0.0; here it stays what it was.
    x = np.where(floats() == 0, np.float32(1), floats())
    both("Where", [np.array([[True], [False]]), x, x])
    both("Where", [np.array([[True], [False]]), ints(), ints()])


def test_clip() -> None:
    low, high = np.float32(-1), np.float32(2)
    both("Clip", [floats(), low, high])
    both("Clip", [floats(), None, high])
    both("Clip", [floats(), low])
    both("Clip", [ints(), np.int64(-2), np.int64(3)])
    both("Clip", [floats()], opset=10, min=-1.0, max=2.0)
    both("Clip", [floats(), high, low])  # the upper limit wins


KINDS = [np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
         np.uint64, np.bool_]


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_casts(source: type, target: type) -> None:
    if source is np.bool_:
        x = np.array([True, False])
    elif np.dtype(source).kind == "f":
        whole = np.dtype(target).kind in "iu"
        low = 0 if np.dtype(target).kind == "u" else -100
        x = RNG.uniform(low, 100, 50).astype(source) if whole else floats(source)
    else:
        x = ints(source, -120, 121)
    both("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    both("CastLike", [x, np.zeros(1, target)])


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**31, -2.0**31 - 1024, -1e30])
def test_casts_out_of_range_are_refused(value: float) -> None:
    node = ir.node("Cast", [ir.Value(name="x")], attributes={"to": onnx.TensorProto.INT32})
    with pytest.raises(CannotEvaluate, match="outside"):
        evaluate(node, [np.array([value], np.float32)], [ir.DataType.FLOAT], 17)


def test_matmul() -> None:
    for a, b in (((3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,))):
        x, y = (RNG.normal(0, 1, s).astype(np.float32) for s in (a, b))
        check("MatMul", [x, y], close_to_largest)
    both("MatMul", [ints(np.int32, size=12).reshape(3, 4), ints(np.int32, size=8).reshape(4, 2)])


def test_gather_elements() -> None:
    x = floats()[:24].reshape(2, 3, 4)
    both("GatherElements", [x, RNG.integers(-3, 3, (2, 5, 4))], axis=1)
    both("GatherElements", [x, RNG.integers(-3, 3, (1, 5, 2))], axis=1)
    both("GatherElements", [x, RNG.integers(-4, 4, (2, 3, 1)).astype(np.int32)], axis=-1)


X = floats()[:24].reshape(2, 3, 4)
Y = np.resize(PLAIN, (3, 4)).astype(np.float32)
I64 = np.int64


def i(*values: int) -> Array:
    return np.array(values, I64)


def tensor(value: Array) -> onnx.TensorProto:
    return numpy_helper.from_array(value)


STRUCTURE: list[tuple[str, list[Array | None], dict[str, Any], int, int]] = [
    # op, inputs, attributes, opset, outputs
    ("Concat", [X, X[:, :1]], {"axis": 1}, 17, 1),
    ("Concat", [X, X], {"axis": -1}, 17, 1),
    ("ConstantOfShape", [i(2, 3)], {"value": tensor(np.array([7], np.int32))}, 17, 1),
    ("ConstantOfShape", [i()], {}, 17, 1),
    ("ConstantOfShape", [i(0, 3)], {}, 17, 1),
    ("CumSum", [ints(I64, size=12).reshape(3, 4), np.array(1)], {}, 17, 1),
    ("CumSum", [ints(I64, size=12).reshape(3, 4), np.array(-2)], {"reverse": 1}, 17, 1),
    ("CumSum", [ints(I64, size=12).reshape(3, 4), np.array(0)], {"exclusive": 1}, 17, 1),
    ("CumSum", [ints(I64, size=12).reshape(3, 4), np.array(1)], {"exclusive": 1, "reverse": 1}, 17, 1),
    ("Expand", [X[:, :1], i(3, 1)], {}, 17, 1),
    ("Expand", [X, i(5, 1, 1, 4)], {}, 17, 1),
    ("EyeLike", [X[0]], {}, 17, 1),
    ("EyeLike", [X[0]], {"k": 1, "dtype": 7}, 17, 1),
    ("EyeLike", [X[0]], {"k": -1}, 17, 1),
    ("Flatten", [X], {"axis": 2}, 17, 1),
    ("Flatten", [X], {"axis": 0}, 17, 1),
    ("Flatten", [X], {"axis": -1}, 17, 1),
    ("Gather", [X, np.array([[0, -1], [2, 1]])], {"axis": 1}, 17, 1),
    ("Gather", [X, np.array(1)], {}, 17, 1),
    ("GatherND", [X, np.array([[0, 1], [1, -1]])], {}, 17, 1),
    ("GatherND", [X, np.array([[1], [2]])], {"batch_dims": 1}, 17, 1),
    ("GatherND", [X, np.array([[[1, -4], [-3, 3]], [[0, 0], [2, -1]]])], {"batch_dims": 1}, 17, 1),
    ("GatherND", [X, np.array([[[1], [-4], [3]], [[0], [2], [-1]]])], {"batch_dims": 2}, 17, 1),
    ("NonZero", [ints(I64, -1, 2, 12).reshape(3, 4)], {}, 17, 1),
    ("NonZero", [np.array([[True, False], [True, True]])], {}, 17, 1),
    ("OneHot", [np.array([0, 2, -1]), np.array(4), np.array([-1.0, 5.0], np.float32)], {}, 17, 1),
    ("OneHot", [np.array([[0, 2], [1, 9]]), np.array([4]), np.array([0.0, 1.0], np.float32)], {"axis": 1}, 17, 1),
    ("Pad", [X, i(0, 1, 0, 0, 0, 2), np.float32(3)], {}, 17, 1),
    ("Pad", [X, i(0, 1, 1, 0, 1, 2)], {"mode": "reflect"}, 17, 1),
    ("Pad", [X, i(0, 1, 1, 0, 1, 2)], {"mode": "edge"}, 17, 1),
    ("Pad", [X, i(1, 2), None, i(1)], {}, 18, 1),
    ("Range", [np.array(2), np.array(11), np.array(3)], {}, 17, 1),
    ("Range", [np.array(5), np.array(-3), np.array(-2)], {}, 17, 1),
    ("Range", [np.array(3), np.array(3), np.array(1)], {}, 17, 1),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.3)], {}, 17, 1),
    ("Reshape", [X, i(4, -1)], {}, 17, 1),
    ("Reshape", [X, i(0, 0, 2, 2)], {}, 17, 1),
    ("Reshape", [X[:0], i(3, 0)], {"allowzero": 1}, 17, 1),
    ("ScatterElements", [X, np.array([[[0, 2, 1, 0]]]), X[:1, :1] + 1], {"axis": 1}, 17, 1),
    ("ScatterElements", [ints(I64, size=12), i(0, 3, -1), i(7, 8, 9)], {"reduction": "add"}, 18, 1),
    *[("ScatterElements", [Y, np.array([[0, -1, 0], [3, 3, 2]]), Y[:2, :3] + 1], {"reduction": how, "axis": -1}, 18, 1)
      for how in ("add", "mul", "max", "min")],
    ("ScatterND", [X, np.array([[0, 1], [1, -1]]), X[0, :2] + 1], {}, 17, 1),
    ("ScatterND", [X, np.array([[[-1]]]), X[None, None, 0] + 1], {}, 17, 1),
    ("ScatterND", [X > 0, np.argwhere(X > -9)[::3], (X > 1).reshape(-1)[::3]], {}, 17, 1),
    *[("ScatterND", [Y, np.array([[0, 1], [-3, -3], [2, 3]]), Y[:, 0] * 2], {"reduction": how}, 18, 1)
      for how in ("mul", "max", "min")],
    ("ScatterND", [ints(I64, size=12), np.array([[0], [0], [5]]), i(7, 8, 9)], {"reduction": "add"}, 18, 1),
    ("Slice", [X, i(1, -1), i(99, -99), i(1, 2), i(1, -2)], {}, 17, 1),
    ("Slice", [X, i(-2), i(2**63 - 1), i(-1)], {}, 17, 1),
    ("Slice", [X], {"starts": [0, 1], "ends": [1, 3], "axes": [0, 2]}, 9, 1),
    ("Split", [X, i(1, 2)], {"axis": 1}, 17, 2),
    ("Split", [X], {"axis": 2}, 17, 2),
    ("Split", [X], {"axis": 1, "num_outputs": 2}, 18, 2),
    ("Split", [X], {"axis": 1, "split": [1, 2]}, 11, 2),
    ("Squeeze", [X[:1, :, :1]], {}, 17, 1),
    ("Squeeze", [X[:1, :, :1], i(-1)], {}, 17, 1),
    ("Squeeze", [X[:1]], {"axes": [0]}, 11, 1),
    ("Tile", [X, i(1, 2, 3)], {}, 17, 1),
    ("Transpose", [X], {"perm": [2, 0, 1]}, 17, 1),
    ("Transpose", [X], {}, 17, 1),
    ("Trilu", [X], {}, 17, 1),
    ("Trilu", [X, np.array(1)], {"upper": 0}, 17, 1),
    ("Trilu", [X, np.array(-1)], {"upper": 1}, 17, 1),
    ("Unsqueeze", [X, i(0, -1)], {}, 17, 1),
    ("Unsqueeze", [X], {"axes": [1]}, 11, 1),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "opset", "outputs"), STRUCTURE)
def test_structural_ops(op: str, inputs: list[Array | None], attributes: dict[str, Any], opset: int,
                        outputs: int) -> None:
    both(op, inputs, opset=opset, outputs=outputs, **attributes)


def test_what_does_not_fit_is_refused() -> None:
    for op, inputs, attributes in (
        ("Reshape", [X, i(5, 5)], {}), ("Add", [X, np.zeros(5, np.float32)], {}), ("Concat", [X, X[0]], {"axis": 0}),
        ("Pad", [X, i(0, -1, 0, 0, 0, 2)], {}), ("Div", [i(1), i(0)], {}), ("Pow", [i(10), i(30)], {}),
        ("GatherElements", [X[0, 0], i(9)], {}),
        ("ScatterND", [X, np.array([[0, 3]]), X[0, :1]], {}),  # out of range
        ("ScatterND", [X, np.array([[0, 1]]), X[0, 0]], {}),  # updates of another shape
        ("ScatterND", [X, np.array([[0]]), X[:1]], {"reduction": "max"}),  # NaN
        ("GatherND", [X, np.array([[0, 0, 0, 0]])], {}),
        ("ScatterElements", [Y, np.zeros((4, 1), np.int64), np.zeros((4, 1), np.float32)], {"axis": 1}),
        ("ScatterElements", [Y, i(0), Y[0, :1]], {}),
        ("MatMul", [np.zeros((9000, 9000), np.float32), np.zeros((9000, 9000), np.float32)], {}),
    ):
        node = ir.node(op, [ir.Value(name=f"v{k}") for k in range(len(inputs))], attributes=attributes)
        with pytest.raises(CannotEvaluate):
            evaluate(node, inputs, [ir.DataType.from_numpy(v.dtype) for v in inputs], 17)


def test_operands_that_do_not_fit() -> None:
    """Sizes that were made up need not fit, nor constants of a model that cannot run."""
    x, y = (ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT)) for name in "xy")
    with pytest.raises(CannotEvaluate, match="operands do not fit"):
        evaluate(ir.Node("", "Max", [x, y]), [np.zeros((0, 4), np.float32), np.zeros((4, 4), np.float32)],
                 [ir.DataType.FLOAT] * 2, 20)
