"""Random graphs of operators that regions take, cut by matrix products, with values shared in every way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Shape = tuple[int | str, ...]
SIZES = {"b": 2, "s": 6}
_STEPS = ["unary", "unary", "binary", "binary", "binary", "broadcast", "reduce", "norm", "view", "view", "view", "cut",
          "split", "concat", "compare", "half", "matmul"]
_FLOAT, _HALF, _BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL


@dataclass(frozen=True)
class Value:
    """Dims "b" and "s" are symbolic in a dynamic graph and SIZES in a static one."""

    name: str
    shape: Shape
    dtype: int = _FLOAT


@dataclass
class RandomGraph:
    """`feeds(sizes)` makes inputs; the model has every value that nobody reads, and some more, as outputs."""

    seed: int
    dynamic: bool
    length: int = 24
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.inputs = [Value("x0", ("b", "s", 16)), Value("x1", ("b", "s", 16)), Value("x2", ("b", 1, 16))]
        self.values += self.inputs
        while len(self.nodes) < self.length:
            step = self.rng.choice(_STEPS)
            getattr(self, f"_{step}")(self.values[self.rng.integers(max(0, len(self.values) - 9), len(self.values))])

    # -- pieces -------------------------------------------------------------------------------------------------
    def _op(self, kind: str, *inputs: str, shape: Shape, dtype: int = _FLOAT, **attributes: Any) -> Value:
        made = Value(f"v{len(self.values)}", shape, dtype)
        self.nodes.append(helper.make_node(kind, list(inputs), [made.name], name=f"n{len(self.nodes)}", **attributes))
        self.values.append(made)
        return made

    def _const(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def _normal(self, *shape: int) -> str:
        return self._const(self.rng.standard_normal(shape))

    def _float(self, v: Value) -> Value:
        return v if v.dtype == _FLOAT else self._op("Cast", v.name, shape=v.shape, to=_FLOAT)

    def _partner(self, v: Value) -> str | None:
        """Another value of the same shape, or one that broadcasts to it."""
        def fits(o: Value) -> bool:
            tail = v.shape[len(v.shape) - len(o.shape):]
            return len(o.shape) <= len(v.shape) and all(a in (1, b) for a, b in zip(o.shape, tail, strict=True))

        others = [o for o in self.values if o.dtype == _FLOAT and o.name != v.name and fits(o)]
        return others[self.rng.integers(len(others))].name if others else None

    # -- steps --------------------------------------------------------------------------------------------------
    def _unary(self, v: Value) -> None:
        v = self._float(v)
        self._op(str(self.rng.choice(["Tanh", "Sigmoid", "Erf", "Neg", "Relu", "Abs", "Identity", "Softplus"])), v.name,
                 shape=v.shape)

    def _binary(self, v: Value) -> None:
        v = self._float(v)
        other = self._partner(v)
        if other is not None:
            pair = [v.name, other]
            self.rng.shuffle(pair)
            self._op(str(self.rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), *pair, shape=v.shape)

    def _broadcast(self, v: Value) -> None:
        v = self._float(v)
        last = v.shape[-1] if v.shape and isinstance(v.shape[-1], int) else 1
        other = self._const(0.5) if self.rng.random() < 0.4 else self._normal(last)
        self._op(str(self.rng.choice(["Add", "Mul"])), v.name, other, shape=v.shape)

    def _reduce(self, v: Value) -> None:
        v = self._float(v)
        kind = str(self.rng.choice(["ReduceMean", "ReduceMax", "ReduceSum"]))
        axes = [-1] if len(v.shape) < 3 or self.rng.random() < 0.7 else [-2, -1]
        axes = [-1] if kind == "ReduceSum" else axes
        keep = int(self.rng.random() < 0.7)
        cut = v.shape[:len(v.shape) - len(axes)]
        shape = (*cut, *([1] * len(axes))) if keep else cut
        if shape:
            self._op(kind, v.name, self._const(axes, np.int64), shape=shape, keepdims=keep)

    def _norm(self, v: Value) -> None:
        v = self._float(v)
        last = v.shape[-1]
        if isinstance(last, int) and self.rng.random() < 0.5:
            self._op("LayerNormalization", v.name, self._normal(last), self._normal(last), shape=v.shape, axis=-1)
        else:
            self._op("Softmax", v.name, shape=v.shape, axis=-1)

    def _view(self, v: Value) -> None:
        choice = self.rng.integers(5)
        last = v.shape[-1]
        if choice == 0 and isinstance(last, int) and last % 4 == 0 and len(v.shape) < 5:
            target = [0] * (len(v.shape) - 1) + [4, last // 4]
            shape = (*v.shape[:-1], 4, last // 4)
            self._op("Reshape", v.name, self._const(target, np.int64), shape=shape, dtype=v.dtype)
        elif choice == 1 and len(v.shape) > 1:
            perm = [int(p) for p in self.rng.permutation(len(v.shape))]
            if self.rng.random() < 0.6:  # mostly those that keep the lanes
                perm = [*[int(p) for p in self.rng.permutation(len(v.shape) - 1)], len(v.shape) - 1]
            self._op("Transpose", v.name, shape=tuple(v.shape[p] for p in perm), dtype=v.dtype, perm=perm)
        elif choice == 2 and len(v.shape) < 5:
            at = int(self.rng.integers(len(v.shape) + 1))
            self._op("Unsqueeze", v.name, self._const([at], np.int64), shape=(*v.shape[:at], 1, *v.shape[at:]),
                     dtype=v.dtype)
        elif choice == 3 and 1 in v.shape and len(v.shape) > 1:
            at = v.shape.index(1)
            self._op("Squeeze", v.name, self._const([at], np.int64), shape=(*v.shape[:at], *v.shape[at + 1:]),
                     dtype=v.dtype)
        elif choice == 4 and len(v.shape) > 2 and all(isinstance(d, int) for d in v.shape[-2:]):
            size = int(v.shape[-1]) * int(v.shape[-2])
            target = [0] * (len(v.shape) - 2) + [-1]
            self._op("Reshape", v.name, self._const(target, np.int64), shape=(*v.shape[:-2], size), dtype=v.dtype)

    def _cut(self, v: Value) -> None:
        axes = [k for k, d in enumerate(v.shape) if isinstance(d, int) and d > 1]
        if not axes:
            return
        axis = int(self.rng.choice(axes))
        size = int(v.shape[axis])
        start = int(self.rng.integers(size))
        if self.rng.random() < 0.3:
            shape = (*v.shape[:axis], *v.shape[axis + 1:])
            if shape:
                self._op("Gather", v.name, self._const(start, np.int64), shape=shape, dtype=v.dtype, axis=axis)
            return
        end = int(self.rng.integers(start + 1, size + 1))
        ends = [self._const([n], np.int64) for n in (start, end, axis)]
        self._op("Slice", v.name, *ends, shape=(*v.shape[:axis], end - start, *v.shape[axis + 1:]), dtype=v.dtype)

    def _split(self, v: Value) -> None:
        axes = [k for k, d in enumerate(v.shape) if isinstance(d, int) and d % 2 == 0]
        if not axes:
            return
        axis = int(self.rng.choice(axes))
        half = int(v.shape[axis]) // 2
        shape = (*v.shape[:axis], half, *v.shape[axis + 1:])
        made = [Value(f"v{len(self.values) + k}", shape, v.dtype) for k in range(2)]
        self.nodes.append(helper.make_node("Split", [v.name, self._const([half, half], np.int64)],
                                           [m.name for m in made], name=f"n{len(self.nodes)}", axis=axis))
        self.values += made

    def _concat(self, v: Value) -> None:
        others = [o for o in self.values if o.dtype == v.dtype and len(o.shape) == len(v.shape) and v.shape
                  and o.shape[:-1] == v.shape[:-1]
                  and isinstance(o.shape[-1], int) and isinstance(v.shape[-1], int) and o.shape[-1] + v.shape[-1] <= 48]
        if others:
            other = others[self.rng.integers(len(others))]
            size = int(v.shape[-1]) + int(other.shape[-1])
            self._op("Concat", v.name, other.name, shape=(*v.shape[:-1], size), dtype=v.dtype, axis=-1)

    def _compare(self, v: Value) -> None:
        v = self._float(v)
        mask = self._op("Greater", v.name, self._const(0.1), shape=v.shape, dtype=_BOOL)
        other = self._partner(v)
        self._op("Where", mask.name, v.name, other or self._const(-1.0), shape=v.shape)

    def _half(self, v: Value) -> None:
        v = self._float(v)
        if self.rng.random() < 0.4:
            small = self._op("Cast", v.name, shape=v.shape, dtype=_HALF, to=_HALF)
            self._op("Cast", small.name, shape=v.shape, to=_FLOAT)

    def _matmul(self, v: Value) -> None:
        v = self._float(v)
        last = v.shape[-1] if v.shape else "?"
        if isinstance(last, int) and len(v.shape) > 1:
            weight = self._const(self.rng.standard_normal((last, 16)) / np.sqrt(last))
            self._op("MatMul", v.name, weight, shape=(*v.shape[:-1], 16))

    # -- results ------------------------------------------------------------------------------------------------
    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        made = [v for v in self.values if v not in self.inputs]
        outputs = [v for v in made if v.name not in read or self.rng.random() < 0.1]

        def info(v: Value) -> onnx.ValueInfoProto:
            shape = [SIZES.get(d, d) if isinstance(d, str) and not self.dynamic else d for d in v.shape]
            return helper.make_tensor_value_info(v.name, v.dtype, shape)

        graph = helper.make_graph(self.nodes, f"random{self.seed}", [info(v) for v in self.inputs],
                                  [info(v) for v in outputs], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def feeds(self, b: int = SIZES["b"], s: int = SIZES["s"]) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed + 1)
        sizes = {"b": b, "s": s}
        return {v.name: rng.standard_normal([sizes[d] if isinstance(d, str) else d for d in v.shape]).astype(np.float32)
                for v in self.inputs}
