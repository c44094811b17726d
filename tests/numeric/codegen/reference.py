"""Nodes evaluated with numpy in extended precision, and how far a kernel may be from that.

`evaluate` computes floats in 80 bits. With a `Noise` it also perturbs the result of every operation that rounds by up
to two units in the last place of the dtype that kernels compute in (float32 for the 16-bit types); the spread of
several such runs tells how much rounding alone can move each element. The bound of `check` is `FACTOR` times that
spread plus half a unit of the output's own dtype. Integers and bools must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tilegraph.ops.dtypes import COMPUTE, stored_name
from tilegraph.ops.lower.base import constant_of
from tilegraph.spec.dims import Dim

Array = np.ndarray[Any, Any]
Wide = np.longdouble
SAMPLES = 8
FACTOR = 8.0
_EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
_OUT = {"float": (2.0**-23, 2.0**-149), "double": (2.0**-52, 2.0**-1074), "float16": (2.0**-10, 2.0**-24),
        "bfloat16": (2.0**-7, 2.0**-133)}
_erf = np.frompyfunc(lambda v: math.erf(float(v)), 1, 1)
_Fn = Callable[..., Any]


class Noise:
    """Relative perturbations of up to two units in the last place."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, x: Array, scale: Array, eps: float) -> Array:
        return x + scale * np.asarray(self.rng.uniform(-2, 2, x.shape) * eps, Wide)  # type: ignore[no-any-return]


def widened(array: Array) -> Array:
    return array.astype(Wide) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else array


def narrowed(array: Array, stored: str) -> Array:
    """A computed value as it is stored; an array, also of a scalar of numpy, which ONNX Runtime does not take."""
    array = np.asarray(array)
    if stored == "bfloat16":
        return array.astype(np.float32).astype(ml_dtypes.bfloat16)
    if stored == "float16":
        return array.astype(np.float32).astype(np.float16)
    return array.astype({"float": "float32", "double": "float64"}.get(stored, stored))


def shape_of(value: ir.Value, binding: Mapping[str, int]) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(d if isinstance(d, int) else Dim.of(d.value or "?").evaluate(binding) for d in value.shape)


class Evaluator:
    """Evaluates nodes one by one under a binding of the symbolic dims."""

    def __init__(self, binding: Mapping[str, int], noise: Noise | None = None) -> None:
        self.binding = binding
        self.noise = noise

    def run(self, nodes: Sequence[ir.Node], feeds: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
        known = {v: widened(a) for v, a in feeds.items()}
        for node in nodes:
            if node.op_type == "Constant":
                continue
            args = [None if v is None else self._operand(v, known) for v in node.inputs]
            known.update(zip(node.outputs, self.node(node, args), strict=True))
        return known

    def _operand(self, value: ir.Value, known: Mapping[ir.Value, Array]) -> Array:
        if value in known:
            return known[value]
        array = constant_of(value)
        assert array is not None, value.name
        return widened(array)

    def node(self, node: ir.Node, args: Sequence[Array | None]) -> list[Array]:
        attrs = {a.name: a.value for a in node.attributes.values()}
        results = _OPS[node.op_type](self, node, list(args), attrs)
        return results if isinstance(results, list) else [results]

    def rounded(self, node: ir.Node, x: Array, scale: Array | None = None, k: int = 0) -> Array:
        """What an operation that rounds gives; `scale`: the size of what was added up, if not that of the result."""
        if self.noise is None or x.dtype != Wide:
            return x
        eps = _EPS[COMPUTE[stored_name(node.outputs[k].dtype)]]
        return self.noise(x, np.abs(x) if scale is None else scale, eps)


Rule = Callable[[Evaluator, ir.Node, list[Any], dict[str, Any]], Any]
_OPS: dict[str, Rule] = {}


def _exact(name: str, fn: Callable[..., Array]) -> None:
    _OPS[name] = lambda e, n, a, at: fn(*a)


def _round(name: str, fn: Callable[..., Array]) -> None:
    _OPS[name] = lambda e, n, a, at: e.rounded(n, fn(*a))


_EXACT: dict[str, _Fn] = {
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)), "Neg": np.negative, "Abs": np.abs,
    "Identity": lambda x: x, "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "Equal": np.equal, "Where": lambda c, x, y: np.where(c, x, y), "BitwiseAnd": np.bitwise_and,
    "BitwiseXor": np.bitwise_xor, "Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil,
    "Round": np.rint}
for _name, _fn in _EXACT.items():
    _exact(_name, _fn)
_OPS["Max"] = lambda e, n, a, at: np.maximum.reduce(np.broadcast_arrays(*a)) if len(a) > 1 else a[0]
_OPS["Min"] = lambda e, n, a, at: np.minimum.reduce(np.broadcast_arrays(*a)) if len(a) > 1 else a[0]
for _name, _fn in {"Add": np.add, "Sub": np.subtract}.items():
    _OPS[_name] = lambda e, n, a, at, fn=_fn: e.rounded(n, fn(*a))  # type: ignore[misc]
_ROUNDED: dict[str, _Fn] = {
    "Mul": np.multiply, "Exp": np.exp, "Tanh": np.tanh, "Sqrt": np.sqrt, "Sin": np.sin, "Cos": np.cos,
    "Reciprocal": lambda x: 1 / x, "Log": np.log, "Erf": lambda x: np.asarray(_erf(x), Wide),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softplus": lambda x: np.logaddexp(x, Wide(0))}
for _name, _fn in _ROUNDED.items():
    _round(_name, _fn)


def _gelu(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    """x/2 (1 + erf): far below zero the sum cancels, in any evaluation of the definition."""
    inner = e.rounded(n, np.asarray(_erf(a[0] / Wide(2)**Wide(0.5)), Wide))
    return e.rounded(n, a[0] / 2 * (1 + inner))


def _div(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    if a[0].dtype == Wide:
        return e.rounded(n, a[0] / a[1])
    quotient = np.abs(a[0].astype(np.int64)) // np.abs(a[1].astype(np.int64))
    return (quotient * np.sign(a[0].astype(np.int64)) * np.sign(a[1].astype(np.int64))).astype(a[0].dtype)


def _cast(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    to = stored_name(n.outputs[0].dtype)
    x = a[0]
    if to not in _OUT:
        return np.trunc(x).astype(to) if x.dtype == Wide and to != "bool" else x.astype(to)
    result = narrowed(x, to).astype(Wide)
    if e.noise is not None and x.dtype == Wide and np.any(result != x):
        result = e.noise(result, np.abs(result), _OUT[to][0] / 2)
    return result


def _sliced(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    starts, ends = a[1], a[2]
    axes = a[3] if len(a) > 3 and a[3] is not None else range(len(starts))
    steps = a[4] if len(a) > 4 else [1] * len(starts)
    index = [slice(None)] * a[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        stop = None if step < 0 and end < -a[0].shape[axis] else int(end)
        index[axis] = slice(int(start), stop, int(step))
    return a[0][tuple(index)]


def _split(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> list[Array]:
    axis = at.get("axis", 0)
    if len(a) < 2:
        chunk = -(-a[0].shape[axis] // len(n.outputs))
        return np.split(a[0], list(range(chunk, a[0].shape[axis], chunk)), axis=axis)
    return np.split(a[0], np.cumsum(a[1])[:-1].astype(int), axis=axis)


def _axes(a: list[Any], at: dict[str, Any]) -> tuple[int, ...]:
    if len(a) > 1 and a[1] is not None:
        return tuple(int(v) for v in a[1])
    return tuple(range(a[0].ndim))


def _reduce(fn: Callable[..., Array], rounds: bool) -> Rule:
    def rule(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
        axes, keep = _axes(a, at), bool(at.get("keepdims", 1))
        result = np.asarray(fn(a[0], axis=axes, keepdims=keep))
        if a[0].dtype != Wide:
            return result.astype(a[0].dtype)
        if not rounds:
            return result
        return e.rounded(n, result, np.asarray(fn(np.abs(a[0]), axis=axes, keepdims=keep)))

    return rule


def _passing_nan(fn: np.ufunc) -> Callable[..., Array]:
    """An extremum that passes over NaN, but of which a NaN in front stays."""

    def reduce(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
        front = x[tuple(slice(0, 1) if k in {a % x.ndim for a in axis} else slice(None) for k in range(x.ndim))]
        best = np.asarray(fn.reduce(x, axis=axis, keepdims=keepdims))
        return np.where(np.isnan(front.reshape(best.shape)), np.nan, best) if x.dtype.kind == "f" else best

    return reduce


def _softmax(log: bool) -> Rule:
    def rule(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
        axis = at.get("axis", -1)
        shifted = a[0] - a[0].max(axis=axis, keepdims=True)
        powers = e.rounded(n, np.exp(e.rounded(n, shifted)))
        total = e.rounded(n, powers.sum(axis=axis, keepdims=True))
        if log:
            logs = np.log(total)
            return e.rounded(n, shifted - logs, np.abs(shifted) + np.abs(logs) + 1)
        return e.rounded(n, powers / total)

    return rule


def _layer_norm(e: Evaluator, n: ir.Node, a: list[Any], at: dict[str, Any]) -> list[Array]:
    x, axis = a[0], at.get("axis", -1)
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = e.rounded(n, x.mean(axes, keepdims=True), np.abs(x).mean(axes, keepdims=True))
    centred = e.rounded(n, x - mean)
    variance = e.rounded(n, (centred * centred).mean(axes, keepdims=True))
    inverse = e.rounded(n, 1 / np.sqrt(variance + Wide(np.float32(at.get("epsilon", 1e-5)))))
    y = e.rounded(n, centred * inverse * a[1])
    if len(a) > 2 and a[2] is not None:
        y = e.rounded(n, y + a[2], np.abs(y) + np.abs(a[2]))
    return [y, mean, inverse][:len(n.outputs)]


def _logsumexp(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    axes, keep = _axes(a, at), bool(at.get("keepdims", 1))
    peak = a[0].max(axis=axes, keepdims=True)
    total = np.log(e.rounded(n, np.exp(a[0] - peak).sum(axis=axes, keepdims=True)))
    result = e.rounded(n, peak + total, np.abs(peak) + np.abs(total) + 1)
    return result if keep else result.reshape([d for k, d in enumerate(a[0].shape) if k not in
                                               {x % a[0].ndim for x in axes}])


def _l2(e: Evaluator, n: ir.Node, a: list[Array], at: dict[str, Any]) -> Array:
    return e.rounded(n, np.sqrt((a[0] * a[0]).sum(axis=_axes(a, at), keepdims=bool(at.get("keepdims", 1)))))


_OPS |= {
    "Gelu": _gelu, "Div": _div, "Cast": _cast, "Slice": _sliced, "Split": _split,
    "Mod": lambda e, n, a, at: np.fmod(*a) if at.get("fmod") else np.mod(*a),
    "Reshape": lambda e, n, a, at: a[0].reshape(shape_of(n.outputs[0], e.binding)),
    "Flatten": lambda e, n, a, at: a[0].reshape(shape_of(n.outputs[0], e.binding)),
    "Squeeze": lambda e, n, a, at: a[0].reshape(shape_of(n.outputs[0], e.binding)),
    "Unsqueeze": lambda e, n, a, at: a[0].reshape(shape_of(n.outputs[0], e.binding)),
    "Expand": lambda e, n, a, at: np.broadcast_to(a[0], shape_of(n.outputs[0], e.binding)),
    "Transpose": lambda e, n, a, at: np.transpose(a[0], at["perm"]),
    "Concat": lambda e, n, a, at: np.concatenate(a, axis=at["axis"]),
    "Gather": lambda e, n, a, at: np.take(a[0], a[1], axis=at.get("axis", 0)),
    "ReduceSum": _reduce(np.sum, True), "ReduceMean": _reduce(np.mean, True),
    "ReduceMax": _reduce(_passing_nan(np.fmax), False),
    "ReduceMin": _reduce(_passing_nan(np.fmin), False), "ReduceProd": _reduce(np.prod, True), "ReduceL2": _l2,
    "ReduceLogSumExp": _logsumexp, "Softmax": _softmax(False), "LogSoftmax": _softmax(True),
    "LayerNormalization": _layer_norm,
}


def evaluate(nodes: Sequence[ir.Node], feeds: Mapping[ir.Value, Array],
             binding: Mapping[str, int]) -> dict[ir.Value, Array]:
    """Every value, floats in extended precision."""
    with np.errstate(all="ignore"):
        return Evaluator(binding).run(nodes, feeds)


def spread(nodes: Sequence[ir.Node], feeds: Mapping[ir.Value, Array], binding: Mapping[str, int],
           truth: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    """For every float value, the largest deviation of `SAMPLES` perturbed runs from `truth`, element by element."""
    found: dict[ir.Value, Array] = {}
    with np.errstate(all="ignore"):
        for seed in range(SAMPLES):
            for value, array in Evaluator(binding, Noise(seed)).run(nodes, feeds).items():
                if array.dtype == Wide:
                    deviation = np.abs(array - truth[value])
                    found[value] = np.maximum(found[value], deviation) if value in found else deviation
    return found


def check(name: str, stored: str, ours: Array, truth: Array, deviation: Array | None) -> None:
    """AssertionError, with the worst element, if `ours` is not `truth` within the bound of this module's text."""
    assert ours.shape == truth.shape, (name, ours.shape, truth.shape)
    if stored not in _OUT:
        wrong = ours != truth.astype(ours.dtype)
        if wrong.any():
            at = _first(wrong)
            raise AssertionError(f"{name}: {int(wrong.sum())} of {wrong.size} differ, first at {at}: "
                                 f"{ours[at]!r} instead of {truth[at]!r}")
        return
    eps, tiny = _OUT[stored]
    wide = ours.astype(Wide)
    assert deviation is not None
    bound = FACTOR * deviation + 0.51 * eps * np.abs(truth) + tiny
    error = np.abs(wide - truth)
    wrong = ~(error <= bound)
    if wrong.any():
        at = _first(wrong)
        raise AssertionError(f"{name} ({stored}): {int(wrong.sum())} of {wrong.size} are off, first at {at}: "
                             f"{wide[at]!r} instead of {truth[at]!r}, bound {bound[at]!r}")


def _first(wrong: Array) -> tuple[int, ...]:
    return tuple(int(k) for k in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
