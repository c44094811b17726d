"""What a mask in memory holds in a run: the nodes that make it, computed on an example or on inputs that hide nothing.

Values are followed up to the graph's inputs. Matrix products, convolutions and whatever `evaluate` does not know are
not computed: floats that they make are 0, as scores are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower import domain_of
from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.normalise.evaluate import CannotEvaluate, evaluable, evaluate
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.rewrites.normalise.shapes import symbolic_contents
from tilegraph.spec.dims import Dim

ASSUMED = 512  # positions, where a run decides how many there are
_MOST = 1 << 22  # elements of a value; what is made of larger ones is not known
_NODES = 512  # of one mask
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
_BFLOAT16 = ir.DataType.BFLOAT16.numpy()

Array = np.ndarray[Any, Any]


class Unknown(Exception):
    """A value that is not computed here."""


class Sizes(Mapping[str, int]):
    """Extents by name: those given, expressions of these, and `other` for the rest (`KeyError` if it is None)."""

    def __init__(self, given: Mapping[str, int], other: int | None = ASSUMED) -> None:
        self.given = given
        self.other = other

    def __getitem__(self, name: str) -> int:
        if name in self.given:
            return self.given[name]
        dim = Dim.of(name)
        if dim.bare_symbol is None:
            return dim.evaluate(self)
        if self.other is None:
            raise KeyError(name)
        return self.other

    def __iter__(self) -> Any:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


class Upstream:
    """Values of one graph. `flag`: what integers and bools are that only a run knows, where there is no `sample`.

    `short`: whether a value was not as large as declared: no run of these sizes is valid, as beyond a table of masks.
    """

    def __init__(self, sizes: Mapping[str, int], flag: int, opset: int,
                 sample: Mapping[str, Array] | None = None) -> None:
        self.sizes = sizes
        self.flag = flag
        self.opset = opset
        self.sample = sample
        self._made: dict[ir.Value, Array] = {}
        self._left = 0
        self.short = False

    def array(self, value: ir.Value) -> Array:
        """The elements of `value`, in its shape under `sizes`; `Unknown` if they cannot be had."""
        self._left = _NODES
        try:
            made = self._of(value)
        except (CannotEvaluate, KeyError) as reason:
            raise Unknown(str(reason)) from reason
        if made.shape != self._shape(value):
            self.short = True
            raise Unknown(f"{value.name} has another shape than it is declared to have")
        return made

    def array_or_stand_in(self, value: ir.Value) -> Array:
        """`array`, or a number for all elements where that cannot be had of inputs that are made up."""
        try:
            return self.array(value)
        except Unknown:
            if self.sample is not None or value.dtype is None:
                raise
            return np.asarray(self._number(value.dtype), value.dtype.numpy())

    def _number(self, dtype: ir.DataType) -> int:
        return self.flag if dtype.is_integer() or dtype == ir.DataType.BOOL else 0

    def _of(self, value: ir.Value) -> Array:
        if value not in self._made:
            self._left -= 1
            if self._left < 0:
                raise Unknown("too many nodes make it")
            self._made[value] = self._find(value)
        return self._made[value]

    def _find(self, value: ir.Value) -> Array:
        known = constant_of(value)
        if known is not None:
            return known
        contents = symbolic_contents(value)
        if contents is not None and all(c is not None for c in contents) and value.dtype is not None:
            flat = [c.evaluate(self.sizes) for c in contents if c is not None]
            return np.array(flat, np.int64).astype(value.dtype.numpy()).reshape(self._shape(value))
        producer = value.producer()
        if producer is None:
            return self._given(value)
        if domain_of(producer) == "" and producer.op_type == "Shape" and producer.inputs[0] is not None:
            ends = (producer.attributes.get(name) for name in ("start", "end"))
            return np.array(self._shape(producer.inputs[0])[slice(*(None if e is None else e.as_int() for e in ends))],
                            np.int64)
        if not _is_computed(producer):
            return self._stand_in(value)
        if any(shape_of(v.shape) is not None and np.prod(self._shape(v), dtype=float) > _MOST
               for v in producer.outputs):
            raise Unknown(f"{value.name} is too large")
        inputs = [None if v is None else self._of(v) for v in producer.inputs]
        results = _results(producer, inputs, self.opset)
        self._made.update(zip(producer.outputs, results, strict=False))
        return self._made[value]

    def _given(self, value: ir.Value) -> Array:
        """An input of the graph."""
        if self.sample is None:
            return self._stand_in(value)
        given = self.sample.get(value.name or "")
        if given is None:
            raise Unknown(f"{value.name} is not given")
        return np.asarray(given)

    def _stand_in(self, value: ir.Value) -> Array:
        if value.dtype is None:
            raise Unknown(f"the type of {value.name} is not known")
        shape = self._shape(value)
        if np.prod(shape, dtype=float) > _MOST:
            raise Unknown(f"{value.name} is too large")
        return np.full(shape, self._number(value.dtype), value.dtype.numpy())

    def _shape(self, value: ir.Value) -> tuple[int, ...]:
        shape = shape_of(value.shape)
        if shape is None or None in shape:
            raise Unknown(f"the shape of {value.name} is not known")
        return tuple(d.evaluate(self.sizes) for d in shape if d is not None)


def _results(node: ir.Node, inputs: list[Array | None], opset: int) -> list[Array]:
    """As `evaluate` says, and what is good enough for a mask: bfloat16 as float32, and casts of floats beyond integers
    (logarithms of 0 in bucketed distances)."""
    first = inputs[0] if inputs else None
    if node.op_type == "Cast" and first is not None:
        target = ir.DataType(node.attributes["to"].as_int())
        if target == ir.DataType.BFLOAT16:
            return [first.astype(np.float32)]
        if target.is_integer() and first.dtype.kind == "f":
            ends = np.iinfo(target.numpy())
            inside = (first > float(ends.min)) & (first < float(ends.max))
            return [np.where(inside, np.where(inside, first, 0).astype(target.numpy()), ends.min)]
    if _is_transpose(node) and first is not None:
        return [np.einsum(_equation(node), first)]
    dtypes = [None if v is None else ir.DataType.FLOAT if v.dtype == ir.DataType.BFLOAT16 else v.dtype
              for v in node.inputs]
    wide = [a if a is None or a.dtype != _BFLOAT16 else a.astype(np.float32) for a in inputs]
    return evaluate(node, wide, dtypes, opset)


def _is_transpose(node: ir.Node) -> bool:
    """An Einsum of one operand."""
    return node.op_type == "Einsum" and len(node.inputs) == 1


def _equation(node: ir.Node) -> str:
    text = node.attributes["equation"].value
    return text.decode() if isinstance(text, bytes) else str(text)


def deciding(values: Iterable[ir.Value]) -> tuple[str, ...]:
    """The graph's inputs whose values, not only extents, reach `values` through nodes that are computed here."""
    reached: set[ir.Value] = set()
    found: dict[str, None] = {}
    stack = list(values)
    while stack and len(reached) < _NODES:
        one = stack.pop()
        contents = symbolic_contents(one)
        if one in reached or constant_of(one) is not None or (contents is not None and None not in contents):
            continue
        reached.add(one)
        producer = one.producer()
        if producer is None:
            found[one.name or ""] = None
        elif _is_computed(producer):
            stack.extend(v for v in producer.inputs if v is not None)
    return tuple(found)


def _is_computed(node: ir.Node) -> bool:
    return (evaluable(node) and node.op_type not in _PRODUCTS) or (domain_of(node) == "" and _is_transpose(node))


class Runs:
    """The runs that are looked at of a model whose main graph is `graph`: of made up inputs by `flag`, the example's.
    """

    LENGTHS = (ASSUMED, ASSUMED // 2, ASSUMED // 4, ASSUMED // 8)
    FLAGS = (1, 0, ASSUMED)  # a padding mask of ones, ids that are no padding, one document as long as all

    def __init__(self, graph: ir.Graph, opset: int, sample: Mapping[str, Array] | None = None) -> None:
        self.graph = graph
        self.opset = opset
        self.sample = sample
        self._made: dict[tuple[int, frozenset[str], int], Upstream] = {}

    def assumed(self, flag: int, single: frozenset[str], length: int = ASSUMED) -> Upstream:
        """Extents are `length`, those named `single` 1."""
        key = (flag, single, length)
        if key not in self._made:
            self._made[key] = Upstream(Sizes(dict.fromkeys(single, 1), length), flag, self.opset)
        return self._made[key]

    def example(self) -> Upstream | None:
        """The run of the example, None where there is none or it lacks extents."""
        if self.sample is None:
            return None
        key = (-1, frozenset[str](), 0)
        if key not in self._made:
            sizes: dict[str, int] = {}
            for value in self.graph.inputs:
                shape, array = shape_of(value.shape), self.sample.get(value.name or "")
                if shape is not None and array is not None and len(shape) == array.ndim:
                    sizes.update({d.bare_symbol: n for d, n in zip(shape, array.shape, strict=True)
                                  if isinstance(d, Dim) and d.bare_symbol is not None})
            self._made[key] = Upstream(Sizes(sizes, None), 1, self.opset, self.sample)
        return self._made[key]
