"""Shapes of element-wise ops, products, reductions and normalisations, and contents of integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.normalise.infer import arith
from tilegraph.rewrites.normalise.infer.arith import MaybeDim
from tilegraph.rewrites.normalise.infer.info import CONTENT_TYPES, Contents, Context, Info, Rule, Shape, contents_array
from tilegraph.spec.dims import Dim

_ONE, _ZERO = Dim.of(1), Dim.of(0)

def _names(*lines: str) -> list[str]:
    return " ".join(lines).split()


SAME_AS_FIRST = _names(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Ceil Clip Cos Cosh CumSum Elu Erf Exp Floor Gelu HardSigmoid",
    "HardSwish Hardmax Identity InstanceNormalization GroupNormalization LRN LeakyRelu Log LogSoftmax LpNormalization",
    "MeanVarianceNormalization Mish Neg RMSNormalization Reciprocal Relu Round ScatterElements ScatterND Selu Shrink",
    "Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu ReverseSequence",
    "RotaryEmbedding Scatter TensorScatter",
)
REDUCTIONS = _names("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd",
                    "ReduceSum ReduceSumSquare")


def elementwise(op: Callable[..., MaybeDim], *operands: Contents | None) -> Contents | None:
    """`op` over broadcast contents; None when one is unknown as a whole or they do not broadcast."""
    known = [o for o in operands if o is not None]
    if len(known) != len(operands):
        return None
    try:
        views = np.broadcast_arrays(*known)
    except ValueError:
        return None
    if views[0].size > 256:
        return None
    flat = [op(*elements) for elements in zip(*(v.reshape(-1) for v in views), strict=True)]
    return contents_array(flat, views[0].shape)


def _truth(value: bool | None) -> MaybeDim:
    return None if value is None else _ONE if value else _ZERO


def _both(op: Callable[[Dim, Dim], Dim]) -> Callable[[MaybeDim, MaybeDim], MaybeDim]:
    return lambda a, b: None if a is None or b is None else op(a, b)


def _not(value: MaybeDim) -> MaybeDim:
    return None if value is None else _truth(equal_zero(value))


def equal_zero(value: MaybeDim) -> bool | None:
    return arith.equal(value, _ZERO)


def _and(a: MaybeDim, b: MaybeDim) -> MaybeDim:
    zeros = (equal_zero(a), equal_zero(b))
    return _ZERO if True in zeros else _ONE if zeros == (False, False) else None


def _or(a: MaybeDim, b: MaybeDim) -> MaybeDim:
    zeros = (equal_zero(a), equal_zero(b))
    return _ONE if False in zeros else _ZERO if zeros == (True, True) else None


def _flip(value: bool | None) -> bool | None:
    return None if value is None else not value


def _where(condition: MaybeDim, a: MaybeDim, b: MaybeDim) -> MaybeDim:
    zero = equal_zero(condition)
    if zero is None:
        return a if a is not None and a == b else None
    return b if zero else a


ARITHMETIC: dict[str, Callable[[MaybeDim, MaybeDim], MaybeDim]] = {
    "Add": _both(lambda a, b: a + b),
    "Sub": _both(lambda a, b: a - b),
    "Mul": _both(lambda a, b: a * b),
    "Div": arith.truncating_div,
    "Mod": arith.remainder,
}
LOGIC: dict[str, Callable[[MaybeDim, MaybeDim], MaybeDim]] = {
    "And": _and,
    "Or": _or,
    "Equal": lambda a, b: _truth(arith.equal(a, b)),
    "Less": lambda a, b: _truth(arith.less(a, b)),
    "Greater": lambda a, b: _truth(arith.less(b, a)),
    "GreaterOrEqual": lambda a, b: _truth(_flip(arith.less(a, b))),
    "LessOrEqual": lambda a, b: _truth(_flip(arith.less(b, a))),
}


def same_as_first(c: Context) -> Sequence[Info]:
    first = c.input(0)
    contents = first.contents
    if contents is not None:
        if c.node.op_type == "Neg":
            contents = elementwise(lambda a: None if a is None else -a, contents)
        elif c.node.op_type in ("Abs", "Relu"):
            contents = elementwise(lambda a: a if a is not None and arith.is_nonnegative(a) else None, contents)
        elif c.node.op_type != "Identity":
            contents = None
    return [Info(first.dtype, first.shape, contents)] + [Info() for _ in c.node.outputs[1:]]


def binary(c: Context) -> Sequence[Info]:
    a, b = c.input(0), c.input(1)
    op = c.node.op_type
    contents = None
    if a.dtype in CONTENT_TYPES and op in ARITHMETIC and not (op == "Mod" and c.attr("fmod", 0)):
        contents = elementwise(ARITHMETIC[op], a.contents, b.contents)
    dtype = a.dtype if a.dtype is not None or op == "Pow" else b.dtype
    return [Info(dtype, arith.broadcast(a.shape, b.shape), contents)]


def logic(c: Context) -> Sequence[Info]:
    a, b = c.input(0), c.input(1)
    op = LOGIC.get(c.node.op_type)
    contents = elementwise(op, a.contents, b.contents) if op is not None else None
    return [Info(ir.DataType.BOOL, arith.broadcast(a.shape, b.shape), contents)]


def negation(c: Context) -> Sequence[Info]:
    a = c.input(0)
    return [Info(ir.DataType.BOOL, a.shape, elementwise(_not, a.contents))]


def predicate(c: Context) -> Sequence[Info]:
    return [Info(ir.DataType.BOOL, c.input(0).shape)]


def variadic(c: Context) -> Sequence[Info]:
    infos = [i if i is not None else Info() for i in c.inputs]
    op = {"Max": arith.largest, "Min": arith.smallest}.get(c.node.op_type)
    contents = None
    if op is not None and infos[0].dtype in CONTENT_TYPES:
        contents = infos[0].contents
        for info in infos[1:]:
            contents = elementwise(_both(op), contents, info.contents)
    dtype = next((i.dtype for i in infos if i.dtype is not None), None)
    return [Info(dtype, arith.broadcast(*(i.shape for i in infos)), contents)]


def where(c: Context) -> Sequence[Info]:
    condition, a, b = c.input(0), c.input(1), c.input(2)
    contents = elementwise(_where, condition.contents, a.contents, b.contents)
    shape = arith.broadcast(condition.shape, a.shape, b.shape)
    return [Info(a.dtype if a.dtype is not None else b.dtype, shape, contents)]


def cast(c: Context) -> Sequence[Info]:
    first = c.input(0)
    target = c.input(1).dtype if c.node.op_type == "CastLike" else ir.DataType(c.attr("to"))
    contents = first.contents if target in CONTENT_TYPES else None
    if contents is not None and target == ir.DataType.BOOL:
        contents = elementwise(lambda a: _truth(_flip(equal_zero(a))), contents)
    elif contents is not None and target == ir.DataType.INT32:
        contents = elementwise(lambda a: a if a is not None and _fits_int32(a) else None, contents)
    return [Info(target, first.shape, contents)]


def _fits_int32(dim: Dim) -> bool:
    return not dim.is_static or -(1 << 31) <= dim.value < 1 << 31


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Of numpy's matmul: vectors, and broadcast leading axes."""
    if a is None or b is None or not a or not b:
        return None
    left = (_ONE, *a) if len(a) == 1 else a
    right = (*b, _ONE) if len(b) == 1 else b
    batch = arith.broadcast(left[:-2], right[:-2])
    assert batch is not None
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*batch, *rows, *columns)


def matmul(c: Context) -> Sequence[Info]:
    return [Info(c.input(0).dtype, matmul_shape(c.input(0).shape, c.input(1).shape))]


def gemm(c: Context) -> Sequence[Info]:
    a, b = c.input(0), c.input(1)
    if a.rank != 2 or b.rank != 2 or a.shape is None or b.shape is None:
        return [Info(a.dtype)]
    return [Info(a.dtype, (a.shape[1 if c.attr("transA", 0) else 0], b.shape[0 if c.attr("transB", 0) else 1]))]


def reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    rank = len(shape)
    gone = {a + rank if a < 0 else a for a in axes}
    if keepdims:
        return tuple(_ONE if i in gone else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def reduction(c: Context) -> Sequence[Info]:
    first = c.input(0)
    axes, keepdims = c.axes(1), c.attr("keepdims", 1) == 1
    if first.shape is None:
        return [Info(first.dtype)]
    if axes is None:
        return [Info(first.dtype, (None,) * len(first.shape) if keepdims else None)]
    if not axes and c.attr("noop_with_empty_axes", 0):
        return [Info(first.dtype, first.shape)]
    contents = None
    combine = {"ReduceProd": lambda a, b: a * b, "ReduceSum": lambda a, b: a + b,
               "ReduceMax": arith.largest, "ReduceMin": arith.smallest}.get(c.node.op_type)
    if combine is not None and first.contents is not None and first.contents.ndim == 1 and first.contents.size:
        total: MaybeDim = first.contents[0]
        for element in first.contents[1:]:
            total = _both(combine)(total, element)
        contents = contents_array([total], (1,) if keepdims else ())
    return [Info(first.dtype, reduced(first.shape, axes or range(len(first.shape)), keepdims), contents)]


def arg_reduction(c: Context) -> Sequence[Info]:
    shape = c.input(0).shape
    if shape is None:
        return [Info(ir.DataType.INT64)]
    return [Info(ir.DataType.INT64, reduced(shape, [c.axis(0, len(shape))], c.attr("keepdims", 1) == 1))]


def layer_norm(c: Context) -> Sequence[Info]:
    first = c.input(0)
    # Those that ONNX Runtime defines take a scale of another type, which is the result's.
    outputs = [Info(c.input(1).dtype, first.shape)]
    if len(c.node.outputs) > 1:
        stats = None
        if first.shape is not None:
            axis = c.axis(-1, len(first.shape))
            stats = tuple(d if i < axis else _ONE for i, d in enumerate(first.shape))
        kept = ir.DataType(c.attr("stash_type", ir.DataType.FLOAT.value))
        outputs += [Info(kept, stats) for _ in c.node.outputs[1:]]
    return outputs


def batch_norm(c: Context) -> Sequence[Info]:
    first = c.input(0)
    statistics = c.input(3)
    return [Info(first.dtype, first.shape)] + [Info(statistics.dtype, statistics.shape) for _ in c.node.outputs[1:]]


def dropout(c: Context) -> Sequence[Info]:
    first = c.input(0)
    mask = ir.DataType.BOOL if c.opset >= 10 else first.dtype
    return [Info(first.dtype, first.shape)] + [Info(mask, first.shape) for _ in c.node.outputs[1:]]


def einsum(c: Context) -> Sequence[Info] | None:
    equation = str(c.attr("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    shapes = [i.shape if i is not None else None for i in c.inputs]
    dtype = c.input(0).dtype
    if "." in equation or len(terms) != len(shapes):
        return None
    extents: dict[str, MaybeDim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(term) != len(shape):
            return [Info(dtype, (None,) * len(right) if arrow else None)]
        for letter, dim in zip(term, shape, strict=True):
            extents[letter] = arith.broadcast_dim(extents[letter], dim) if letter in extents else dim
    if not arrow:
        right = "".join(sorted(x for x in extents if left.count(x) == 1))
    return [Info(dtype, tuple(extents[x] for x in right))]


RULES: dict[tuple[str, str], Rule] = {
    **{("", op): same_as_first for op in SAME_AS_FIRST},
    **{("", op): binary for op in (*ARITHMETIC, "Pow", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    **{("", op): logic for op in (*LOGIC, "Xor")},
    **{("", op): variadic for op in ("Max", "Min", "Sum", "Mean")},
    **{("", op): reduction for op in REDUCTIONS},
    ("", "ArgMax"): arg_reduction,
    ("", "ArgMin"): arg_reduction,
    ("", "Not"): negation,
    ("", "IsNaN"): predicate,
    ("", "IsInf"): predicate,
    ("", "Where"): where,
    ("", "Cast"): cast,
    ("", "CastLike"): cast,
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    ("", "LayerNormalization"): layer_norm,
    ("", "BatchNormalization"): batch_norm,
    ("", "Dropout"): dropout,
    ("", "Einsum"): einsum,
    ("", "SimplifiedLayerNormalization"): layer_norm,
}
