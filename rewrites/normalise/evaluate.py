"""The value of one node on constant inputs, with ONNX's semantics, in numpy.

Arithmetic that IEEE defines exactly is done in the tensor's own type; transcendental functions and float reductions
are computed in double precision and rounded once. Structural ops go through onnx's reference implementation. Ops that
are not listed are not evaluated. `tests/numeric/normalise` compares each of them with ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
Arrays = Sequence[Array | None]

# Moves, cuts and fills: onnx's reference does what numpy does.
STRUCTURAL = frozenset((
    "Concat", "ConstantOfShape", "CumSum", "Expand", "EyeLike", "Flatten", "Gather", "NonZero", "Pad", "Range",
    "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
))
# These also work on types that numpy has no arithmetic for.
_ANY_TYPE = frozenset(("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
                       "Tile", "Transpose", "Unsqueeze"))
_WORK_LIMIT = 1 << 27  # multiplications of a constant matrix product

_D = ir.DataType
NUMERIC = frozenset((_D.FLOAT, _D.DOUBLE, _D.FLOAT16, _D.INT8, _D.INT16, _D.INT32, _D.INT64, _D.UINT8, _D.UINT16,
                     _D.UINT32, _D.UINT64, _D.BOOL))


class CannotEvaluate(Exception):
    """Why a node is not evaluated."""


def evaluable(node: ir.Node) -> bool:
    """Whether `evaluate` knows the op; it may still refuse the operands."""
    return node.domain == "" and (node.op_type in STRUCTURAL or node.op_type in _DIRECT)


def evaluate(node: ir.Node, inputs: Arrays, dtypes: Sequence[_D | None], opset: int) -> list[Array]:
    """The outputs of `node`. `inputs` and `dtypes` have None for absent inputs.

    Raises CannotEvaluate with the reason.
    """
    op = node.op_type
    if any(a.is_ref() for a in node.attributes.values()):
        raise CannotEvaluate("an attribute is a parameter of a function")
    if op not in _ANY_TYPE and any(d is not None and d not in NUMERIC for d in dtypes):
        raise CannotEvaluate("the element type has no arithmetic here")
    with np.errstate(all="ignore"):
        direct = _DIRECT.get(op)
        if direct is not None:
            try:
                return [np.asarray(direct(node, inputs, opset))]
            except (ValueError, IndexError) as reason:
                raise CannotEvaluate(f"its operands do not fit: {reason}") from reason
        return _reference(node, inputs, opset)


def _reference(node: ir.Node, inputs: Arrays, opset: int) -> list[Array]:
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    proto = onnx.NodeProto(op_type=node.op_type, input=names, output=[f"o{k}" for k in range(len(node.outputs))])
    proto.attribute.extend(ir.serde.serialize_attribute(a) for a in node.attributes.values())
    graph = onnx.GraphProto(name="one", node=[proto])
    for name in names:
        if name:
            graph.input.append(onnx.ValueInfoProto(name=name))
    graph.output.extend(onnx.ValueInfoProto(name=o) for o in proto.output)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        feeds = {n: v for n, v in zip(names, inputs, strict=True) if v is not None}
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # a node that is wrong on these values: leave it to the run, and to its message
        raise CannotEvaluate(f"its operands do not fit ({error})") from error
    return [np.asarray(r) for r in results]


# -- direct evaluation -----------------------------------------------------------------------------------
Direct = Callable[[ir.Node, Arrays, int], Any]


def _given(inputs: Arrays, index: int) -> Array:
    found = inputs[index] if index < len(inputs) else None
    if found is None:
        raise CannotEvaluate(f"input {index} is absent")
    return found


def _attr(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def _unary(op: Callable[[Array], Array]) -> Direct:
    return lambda node, inputs, opset: op(_given(inputs, 0))


def _binary(op: Callable[[Array, Array], Array]) -> Direct:
    def run(node: ir.Node, inputs: Arrays, opset: int) -> Array:
        try:
            return op(_given(inputs, 0), _given(inputs, 1))
        except ValueError as error:
            raise CannotEvaluate("its operands do not broadcast") from error
    return run


def _precise(op: Callable[[Array], Array]) -> Direct:
    """In double precision, rounded once to the operand's type."""
    def run(node: ir.Node, inputs: Arrays, opset: int) -> Array:
        x = _given(inputs, 0)
        if x.dtype.kind != "f":
            raise CannotEvaluate("it is defined for floats only")
        return op(x.astype(np.float64)).astype(x.dtype)
    return run


def _fold_pairs(op: Callable[[Array, Array], Array]) -> Direct:
    def run(node: ir.Node, inputs: Arrays, opset: int) -> Array:
        total = _given(inputs, 0)
        for index in range(1, len(inputs)):
            total = op(total, _given(inputs, index))
        return total
    return run


def _div(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if (b == 0).any():
        raise CannotEvaluate("it divides an integer by zero")
    if a.dtype.kind == "i" and ((b == -1).any() and (a == np.iinfo(a.dtype).min).any()):
        raise CannotEvaluate("the quotient overflows")
    quotient = np.floor_divide(a, b)
    inexact = np.multiply(quotient, b) != a
    return np.asarray(np.where(inexact & ((a < 0) != (b < 0)), quotient + 1, quotient).astype(a.dtype))


def _mod(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    a, b = _given(inputs, 0), _given(inputs, 1)
    if a.dtype.kind != "f" and (b == 0).any():
        raise CannotEvaluate("it divides an integer by zero")
    if _attr(node, "fmod", 0):
        return np.asarray(np.fmod(a, b))
    if a.dtype.kind == "f":
        raise CannotEvaluate("Mod of floats needs fmod")
    return np.asarray(np.mod(a, b))


def _pow(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    base, exponent = _given(inputs, 0), _given(inputs, 1)
    if base.dtype.kind == "f":
        return np.asarray(np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype))
    if exponent.dtype.kind == "f" or (exponent < 0).any():
        raise CannotEvaluate("an integer power of this kind is not exact")
    result = np.power(base.astype(object), exponent.astype(object))
    limits = np.iinfo(base.dtype)
    if any(not limits.min <= int(v) <= limits.max for v in np.ravel(result)):
        raise CannotEvaluate("the power overflows")
    return np.asarray(result).astype(base.dtype)


def _cast_to(x: Array, target: _D) -> Array:
    if target not in NUMERIC:
        raise CannotEvaluate(f"casts to {target.name} are left to the run")
    dtype = target.numpy()
    if x.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        wide = x.astype(np.float64)
        if not np.isfinite(wide).all() or (wide < float(limits.min)).any() or (wide >= float(limits.max) + 1).any():
            raise CannotEvaluate("a float outside the integer's range")
    return x.astype(dtype)


def _cast(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    return _cast_to(_given(inputs, 0), _D(_attr(node, "to")))


def _cast_like(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    return _cast_to(_given(inputs, 0), _D.from_numpy(_given(inputs, 1).dtype))


def _where(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    try:
        return np.where(_given(inputs, 0), _given(inputs, 1), _given(inputs, 2))
    except ValueError as error:
        raise CannotEvaluate("its operands do not broadcast") from error


def _clip(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    x = _given(inputs, 0)
    if opset < 11:
        given = _attr(node, "min"), _attr(node, "max")
        limits = [None if v is None else np.asarray(v, dtype=x.dtype) for v in given]
    else:
        limits = [inputs[k] if k < len(inputs) else None for k in (1, 2)]
    # An absent limit is the lowest or largest finite value, so Clip turns infinities into finite values.
    info = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
    low, high = (x.dtype.type(d) if v is None else v for v, d in zip(limits, (info.min, info.max), strict=True))
    return np.asarray(np.minimum(np.maximum(x, low), high))


def _axes(node: ir.Node, inputs: Arrays) -> tuple[int, ...] | None:
    given = _attr(node, "axes")
    if given is None and len(inputs) > 1 and inputs[1] is not None:
        given = inputs[1].tolist()
    return tuple(int(a) for a in given) if given is not None and len(given) else None


def _reduce(op: Callable[..., Any]) -> Direct:
    def run(node: ir.Node, inputs: Arrays, opset: int) -> Array:
        x, axes = _given(inputs, 0), _axes(node, inputs)
        if axes is None and _attr(node, "noop_with_empty_axes", 0):
            return x
        if x.size == 0:
            raise CannotEvaluate("it reduces an empty tensor")
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        if x.dtype.kind != "f" and op is np.mean:
            raise CannotEvaluate("an integer mean is left to the run")
        kept = _attr(node, "keepdims", 1) == 1
        return np.asarray(op(wide, axis=axes, keepdims=kept)).astype(x.dtype)
    return run


def _matmul(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    a, b = _given(inputs, 0), _given(inputs, 1)
    if not a.ndim or not b.ndim or a.size * b.shape[-1] > _WORK_LIMIT:
        raise CannotEvaluate("the product is too large to compute here")
    if a.dtype.kind == "f":
        return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype))
    return np.asarray(np.matmul(a, b))


# Onnx's reference goes through the elements of what follows one by one: half a second for a mask of 512 x 1,024.
def _checked(indices: Array, extents: Sequence[int]) -> list[Array]:
    """The last axis of `indices`, one array for each of `extents`, none of them negative."""
    found = []
    for part, size in zip(np.moveaxis(indices.astype(np.int64), -1, 0), extents, strict=True):
        if part.size and not -size <= part.min() <= part.max() < size:
            raise CannotEvaluate("an index is out of range")
        found.append(np.where(part < 0, part + size, part))
    return found


def _along(indices: Array, axis: int, data: Array) -> tuple[Array, ...]:
    """Places of elements whose position along `axis` is given, and their own along the others."""
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    (places[axis],) = _checked(indices[..., None], data.shape[axis:axis + 1])
    return tuple(places)


def _axis_of(node: ir.Node, data: Array, indices: Array) -> int:
    if indices.ndim != data.ndim or not data.ndim:
        raise CannotEvaluate("its indices have another rank")
    axis = int(_attr(node, "axis", 0)) % data.ndim
    if any(n > size for k, (n, size) in enumerate(zip(indices.shape, data.shape, strict=True)) if k != axis):
        raise CannotEvaluate("its indices are longer than its data")
    return axis


def _gather_elements(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    data, indices = _given(inputs, 0), _given(inputs, 1)
    return np.asarray(data[_along(indices, _axis_of(node, data, indices), data)])


def _gather_nd(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    data, indices = _given(inputs, 0), _given(inputs, 1)
    batch, depth = int(_attr(node, "batch_dims", 0)), indices.shape[-1] if indices.ndim else 0
    if data.shape[:batch] != indices.shape[:batch] or not 0 < depth <= data.ndim - batch:
        raise CannotEvaluate("its indices do not fit")
    places = np.ogrid[tuple(slice(n) for n in indices.shape[:-1])][:batch]
    return np.asarray(data[(*places, *_checked(indices, data.shape[batch:batch + depth]))])


def _scattered(node: ir.Node, data: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """A copy of `data` with `updates` at `places`; of those at one place the last counts, or all do."""
    how = _attr(node, "reduction", "none")
    result = data.copy()
    if how == "none":
        result[places] = updates
        return result
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(how)
    if ufunc is None or data.dtype == np.bool_ or np.isnan(data).any() or np.isnan(updates).any():
        raise CannotEvaluate(f"reduction {how} of these values is left to the run")
    ufunc.at(result, places, updates)
    return result


def _scatter_elements(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    data, indices, updates = (_given(inputs, k) for k in range(3))
    if indices.shape != updates.shape:
        raise CannotEvaluate("its updates do not fit its indices")
    return _scattered(node, data, _along(indices, _axis_of(node, data, indices), data), updates)


def _scatter_nd(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    data, indices, updates = (_given(inputs, k) for k in range(3))
    depth = indices.shape[-1] if indices.ndim else 0
    if not 0 < depth <= data.ndim or updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        raise CannotEvaluate("its updates do not fit its indices")
    return _scattered(node, data, tuple(_checked(indices, data.shape[:depth])), updates)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(np.isnan(x), x, np.where(x >= 0, 1 / (1 + e), e / (1 + e))))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)) if x.size else x


def _shift(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    a, b = _given(inputs, 0), _given(inputs, 1)
    if (b >= a.dtype.itemsize * 8).any():
        raise CannotEvaluate("a shift by the width of the type or more is undefined")
    return np.asarray(np.left_shift(a, b) if _attr(node, "direction") == "LEFT" else np.right_shift(a, b))


def _is_inf(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    x = _given(inputs, 0)
    wanted = [np.isposinf(x)] if _attr(node, "detect_positive", 1) else []
    wanted += [np.isneginf(x)] if _attr(node, "detect_negative", 1) else []
    return np.logical_or.reduce(wanted) if wanted else np.zeros(x.shape, np.bool_)


def _one_hot(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    """One of two values, whatever they are: onnx's reference adds a difference, which infinities have not."""
    places, depth, pair = (_given(inputs, k) for k in range(3))
    size = int(depth.reshape(-1)[0])
    places = np.where(places < 0, places + np.asarray(size, places.dtype), places)
    hot = places[..., None] == np.arange(size)
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    return np.moveaxis(np.where(hot, pair[1], pair[0]), -1, axis)


def _batch_norm(node: ir.Node, inputs: Arrays, opset: int) -> Array:
    """In training by the statistics of x, as convolutions with standardised weights (NFNet) norm these."""
    x, *given = (_given(inputs, k) for k in range(5))
    if opset < 14 or x.ndim < 2 or any(o.name and (o.uses() or o.is_graph_output()) for o in node.outputs[1:]):
        raise CannotEvaluate("its statistics are left to the run")
    scale, bias, mean, var = (a.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2)) for a in given)
    wide = x.astype(np.float64)
    if _attr(node, "training_mode", 0):
        others = (0, *range(2, x.ndim))
        mean, var = wide.mean(others, keepdims=True), wide.var(others, keepdims=True)
    return np.asarray(((wide - mean) / np.sqrt(var + _attr(node, "epsilon", 1e-5)) * scale + bias).astype(x.dtype))


_DIRECT: dict[str, Direct] = {
    "Identity": _unary(lambda x: x),
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply), "Div": _binary(_div),
    "Mod": _mod, "Pow": _pow, "BitShift": _shift,
    "Neg": _unary(np.negative), "Abs": _unary(np.abs), "Floor": _unary(np.floor), "Ceil": _unary(np.ceil),
    "Round": _unary(np.rint), "Sign": _unary(np.sign), "Sqrt": _unary(np.sqrt),
    "Reciprocal": _unary(lambda x: np.divide(np.ones((), x.dtype), x)),
    "Relu": _unary(lambda x: np.where(x < 0, np.zeros((), x.dtype), x)),  # keeps -0.0, as ONNX Runtime does
    "Not": _unary(np.logical_not), "IsNaN": _unary(np.isnan), "IsInf": _is_inf,
    "And": _binary(np.logical_and), "Or": _binary(np.logical_or), "Xor": _binary(np.logical_xor),
    "Equal": _binary(np.equal), "Less": _binary(np.less), "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater), "GreaterOrEqual": _binary(np.greater_equal),
    "Where": _where, "Clip": _clip, "Cast": _cast, "CastLike": _cast_like,
    "Max": _fold_pairs(np.maximum), "Min": _fold_pairs(np.minimum), "Sum": _fold_pairs(np.add),
    "Exp": _precise(np.exp), "Log": _precise(np.log), "Sin": _precise(np.sin), "Cos": _precise(np.cos),
    "Tan": _precise(np.tan), "Tanh": _precise(np.tanh), "Erf": _precise(_erf), "Sigmoid": _precise(_sigmoid),
    "Sinh": _precise(np.sinh), "Cosh": _precise(np.cosh), "Atan": _precise(np.arctan),
    "ReduceSum": _reduce(np.sum), "ReduceMean": _reduce(np.mean), "ReduceProd": _reduce(np.prod),
    "ReduceMax": _reduce(np.max), "ReduceMin": _reduce(np.min),
    "BatchNormalization": _batch_norm, "MatMul": _matmul, "OneHot": _one_hot, "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
}
