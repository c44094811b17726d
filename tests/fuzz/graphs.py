"""Random graphs over everything that ONNX Runtime runs and regions may take, each node tried as it is added.

A node is run by itself in ONNX Runtime with the values that its inputs have; what is refused is left out. So every
graph runs, every value's type and shape is known, and the generator needs no rules of its own for either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tests.fuzz.blocks import BLOCKS
from tests.fuzz.guards import EXACT, JUMPING, one_answer

Array = np.ndarray[Any, Any]
OPSETS = (13, 15, 17, 18, 19, 20, 21, 21, 21, 22, 23, 23, 24)
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 37, 64)
FLOATS = (np.float32, np.float32, np.float32, np.float32, np.float16, np.float64)
INTEGERS = (np.int64, np.int64, np.int32, np.int32, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.uint64)
UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Softplus", "Softsign", "Reciprocal",
         "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Atan", "HardSwish", "Mish", "IsNaN", "Not", "Identity",
         "Sinh", "Asinh")
WITH_ATTRIBUTE = {
    "LeakyRelu": ("alpha", 0.3),
    "Elu": ("alpha", 0.7),
    "HardSigmoid": ("alpha", 0.25),
    "Celu": ("alpha", 1.5),
    "Selu": ("gamma", 1.1),
    "ThresholdedRelu": ("alpha", 0.4),
    "Gelu": ("approximate", "tanh"),
    "IsInf": ("detect_negative", 0),
}
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Greater", "Less", "Equal", "GreaterOrEqual",
          "LessOrEqual", "And", "Or", "Xor", "Mod")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSumExp", "ReduceL1")
PLAIN = ("unary", "unary", "attribute", "binary", "binary", "binary", "constant", "constant", "where", "cast", "reduce",
         "reduce", "norm", "reshape", "transpose", "slice", "concat", "split", "pad", "expand", "tile", "gather",
         "squeeze", "matmul", "clip", "cumsum", "arg")
STEPS = (*PLAIN, *PLAIN, "unary", "attribute", "binary", *BLOCKS)


@dataclass
class Graph:
    """One random model: `model()`, and `feeds` that it runs on."""

    seed: int
    length: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    rounded: set[str] = field(default_factory=set)  # values that two right programs may give differently
    opset: int = 0
    settled: bool = False  # other values of the inputs would have undefined results

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.special = self.rng.random() < 0.15  # NaN, infinities, zeros, subnormals, huge and tiny numbers
        rank = int(self.rng.integers(1, 5))
        shape = [int(self.rng.choice(SIZES)) for _ in range(rank)]
        if self.rng.random() < 0.04:
            shape[int(self.rng.integers(rank))] = 0
        self.shape = tuple(shape)
        for k in range(int(self.rng.integers(1, 4))):
            dtype = (
                self.rng.choice(FLOATS)
                if k == 0 or self.rng.random() < 0.75
                else self.rng.choice((*INTEGERS, np.bool_))
            )
            dims = [1 if k and self.rng.random() < 0.2 else d for d in shape]
            self.feeds[f"x{k}"] = self.values[f"x{k}"] = self.random(dims, np.dtype(dtype))
        wanted = self.length or int(self.rng.integers(3, 22))
        for _ in range(wanted * 4):
            if len(self.nodes) >= wanted:
                break
            step = STEPS[int(self.rng.integers(len(STEPS)))]
            if callable(step):
                step(self)
            else:
                getattr(self, f"_{step}")()

    # -- values -------------------------------------------------------------------------------------------------
    def random(self, shape: Any, dtype: np.dtype[Any]) -> Array:
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            low, high = (max(limits.min, -9), 9) if self.rng.random() < 0.7 else (limits.min, limits.max)
            return np.asarray(self.rng.integers(low, high, size=shape, dtype=dtype.type, endpoint=True))
        made = np.asarray(self.rng.standard_normal(shape)).astype(dtype)
        if self.special and made.size:
            limits = np.finfo(dtype)
            # Not the largest ones: kernels round a product and a sum of it once, so that the sum of two such products
            # may be finite where ONNX Runtime's leaves the range on the way.
            odd = np.array([np.nan, np.inf, -np.inf, 0, -0.0, limits.tiny, -limits.smallest_subnormal, 1e4, -1e4, 88.7,
                            -104], dtype)
            flat = made.reshape(-1)
            at = self.rng.integers(made.size, size=max(1, made.size // 5))
            flat[at] = self.rng.choice(odd, size=at.size)
        return made

    def pick(self, kinds: str = "fiub", rank: int = 0) -> str | None:
        names = [
            n for n, v in self.values.items() if v.dtype.kind in kinds and v.ndim >= rank and n not in self.constants
        ]
        if not names:
            return None
        recent = names[-6:] if self.rng.random() < 0.7 else names
        return str(self.rng.choice(recent))

    def const(self, array: Any, dtype: Any = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.values[name] = np.asarray(array, dtype)
        return name

    def add(self, op: str, inputs: list[str], outputs: int = 1, domain: str = "", **attributes: Any) -> bool:
        """Adds the node if ONNX Runtime runs it on these values and its results are not too large."""
        operands = [self.values[i] for i in inputs if i]
        if not one_answer(op, operands):
            return False
        inexact = any(i in self.rounded for i in inputs)
        if inexact and (op in JUMPING or (op == "Cast" and attributes["to"] not in (1, 10, 11))):
            return False
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", domain=domain, **attributes)
        try:
            results = run_node(node, self.values, self.opset)
        except Exception:
            return False
        if any(not isinstance(r, np.ndarray) or r.size > 40000 or r.ndim > 6 for r in results):
            return False
        if any(r.dtype == np.float16 and np.isinf(r).any() and all(np.isfinite(v).all() for v in operands
                                                                   if v.dtype.kind == "f") for r in results):
            return False  # regions compute in float32, and keep what is beyond float16's range
        self.nodes.append(node)
        if inexact or op not in EXACT:
            self.rounded.update(n for n, r in zip(names, results, strict=True) if r.dtype.kind == "f")
        self.values.update(zip(names, results, strict=True))
        return True

    def put(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> str | None:
        """`add`, and the name of the first output."""
        return f"v{len(self.nodes) - 1}_0" if self.add(op, inputs, outputs, **attributes) else None

    # -- steps --------------------------------------------------------------------------------------------------
    def _unary(self) -> None:
        if (x := self.pick()) is not None:
            self.add(str(self.rng.choice(UNARY)), [x])

    def _attribute(self) -> None:
        op = str(self.rng.choice(list(WITH_ATTRIBUTE)))
        name, value = WITH_ATTRIBUTE[op]
        if (x := self.pick("f")) is not None:
            self.add(op, [x], **({name: value} if self.rng.random() < 0.7 else {}))

    def _binary(self) -> None:
        x = self.pick()
        if x is None:
            return
        others = [n for n, v in self.values.items() if v.dtype == self.values[x].dtype and n not in self.constants]
        y = str(self.rng.choice(others))
        op = str(self.rng.choice(BINARY))
        if op in ("Div", "Mod") and self.values[y].dtype.kind in "iu":
            return  # the value could be zero for other inputs
        pair = [x, y] if self.rng.random() < 0.5 else [y, x]
        if op in ("Div", "Mod") and self.values[pair[1]].dtype.kind in "iu":
            return
        self.add(op, pair, **({"fmod": 1} if op == "Mod" else {}))

    def _constant(self) -> None:
        x = self.pick()
        if x is None:
            return
        value = self.values[x]
        shape = [d if self.rng.random() < 0.5 else 1 for d in value.shape]
        shape = shape[int(self.rng.integers(len(shape) + 1)) :]
        array = self.random(shape, value.dtype)
        op = str(self.rng.choice(BINARY))
        if op in ("Div", "Mod") and value.dtype.kind in "iu":
            array = np.where(array == 0, 1, array).astype(value.dtype)
            array = np.where(array == -1, 1, array).astype(value.dtype) if value.dtype.kind == "i" else array
        c = self.const(array)
        if not self.add(
            op,
            [x, c] if (value.dtype.kind in "iu" and op in ("Div", "Mod")) or self.rng.random() < 0.7 else [c, x],
            **({"fmod": 1} if op == "Mod" and value.dtype.kind == "f" else {}),
        ):
            del self.constants[c], self.values[c]

    def _where(self) -> None:
        mask, x = self.pick("b"), self.pick()
        if mask is None or x is None:
            return
        others = [n for n, v in self.values.items() if v.dtype == self.values[x].dtype]
        self.add("Where", [mask, x, str(self.rng.choice(others))])

    def _cast(self) -> None:
        x = self.pick()
        if x is not None:
            value = self.values[x]
            target = np.dtype(self.rng.choice((*FLOATS, *INTEGERS, np.bool_)))
            if (
                value.dtype.kind == "f"
                and target.kind in "iu"
                and (
                    not np.isfinite(value).all()
                    or np.abs(value.astype(np.float64)).max(initial=0) > 100
                    or (target.kind == "u" and value.min(initial=0) < 0)
                )
            ):
                return  # undefined
            self.settled |= value.dtype.kind == "f" and target.kind in "iu"
            self.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(target))

    def _axes(self, rank: int) -> list[int]:
        count = int(self.rng.integers(1, rank + 1)) if self.rng.random() < 0.4 else 1
        axes = sorted(int(a) for a in self.rng.choice(rank, size=count, replace=False))
        if count == 1 and self.rng.random() < 0.6:
            axes = [rank - 1]
        return [a - rank if self.rng.random() < 0.5 else a for a in axes]

    def _reduce(self) -> None:
        if (x := self.pick("fi", 1)) is not None:
            op, axes = str(self.rng.choice(REDUCTIONS)), self._axes(self.values[x].ndim)
            keep = int(self.rng.random() < 0.6)
            if self.opset >= (13 if op == "ReduceSum" else 18):
                self.add(op, [x, self.const(axes, np.int64)], keepdims=keep)
            else:
                self.add(op, [x], keepdims=keep, axes=axes)

    def _norm(self) -> None:
        x = self.pick("f", 1)
        if x is None:
            return
        value, last = self.values[x], self.values[x].shape[-1]
        kind = self.rng.integers(4)
        if kind == 0 and self.opset < 17:
            return  # ONNX Runtime knows it there, the standard does not
        if kind == 0:
            inputs = [x, self.const(self.random([last], value.dtype))]
            if self.rng.random() < 0.7:
                inputs.append(self.const(self.random([last], value.dtype)))
            self.add("LayerNormalization", inputs, axis=-1, epsilon=1e-5)
        else:
            self.add(
                ("Softmax", "LogSoftmax", "LpNormalization")[int(kind) - 1], [x], axis=int(self._axes(value.ndim)[0])
            )

    def _reshape(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        shape = list(self.values[x].shape)
        k = int(self.rng.integers(len(shape)))
        if self.rng.random() < 0.5 and len(shape) > 1:
            k = int(self.rng.integers(len(shape) - 1))
            target = [*([0] * k), -1, *shape[k + 2 :]]
        else:
            factors = [f for f in (1, 2, 4, 8) if shape[k] % f == 0]
            target = [*([0] * k), -1, int(self.rng.choice(factors)), *shape[k + 1 :]]
        self.add("Reshape", [x, self.const(target, np.int64)])

    def _transpose(self) -> None:
        if (x := self.pick(rank=2)) is not None:
            self.add("Transpose", [x], perm=[int(p) for p in self.rng.permutation(self.values[x].ndim)])

    def _slice(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        axis = int(self.rng.integers(self.values[x].ndim))
        size = self.values[x].shape[axis]
        step = int(self.rng.choice([1, 1, 1, 2, -1, -2]))
        a, b = (int(n) for n in self.rng.integers(-size - 1, size + 2, size=2))
        parts = [[a], [b if self.rng.random() < 0.7 else (2**62 if step > 0 else -(2**62))], [axis], [step]]
        self.add("Slice", [x, *(self.const(p, np.int64) for p in parts)])

    def _concat(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        value = self.values[x]
        axis = int(self.rng.integers(value.ndim))
        fitting = [
            n
            for n, v in self.values.items()
            if v.dtype == value.dtype
            and v.ndim == value.ndim
            and all(a == b for k, (a, b) in enumerate(zip(v.shape, value.shape, strict=True)) if k != axis)
        ]
        chosen = [str(n) for n in self.rng.choice(fitting, size=int(self.rng.integers(1, 4)))]
        self.add("Concat", [x, *chosen], axis=axis)

    def _split(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        axis = int(self.rng.integers(self.values[x].ndim))
        size = self.values[x].shape[axis]
        if size < 2:
            return
        first = int(self.rng.integers(0, size + 1))
        self.add("Split", [x, self.const([first, size - first], np.int64)], outputs=2, axis=axis)

    def _pad(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        pads = self.rng.integers(-1, 3, size=2 * self.values[x].ndim)
        mode = str(self.rng.choice(["constant", "constant", "edge", "reflect", "wrap"]))
        inputs = [x, self.const(pads if mode == "constant" else np.abs(pads), np.int64)]
        if mode == "constant" and self.rng.random() < 0.5:
            inputs.append(self.const(self.random([], self.values[x].dtype)))
        self.add("Pad", inputs, mode=mode)

    def _expand(self) -> None:
        if (x := self.pick(rank=1)) is not None:
            shape = [int(self.rng.choice(SIZES)) if d == 1 else d for d in self.values[x].shape]
            self.add("Expand", [x, self.const(([2] if self.rng.random() < 0.3 else []) + shape, np.int64)])

    def _tile(self) -> None:
        if (x := self.pick(rank=1)) is not None:
            self.add("Tile", [x, self.const(self.rng.integers(1, 3, size=self.values[x].ndim), np.int64)])

    def _gather(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        axis = int(self.rng.integers(self.values[x].ndim))
        size = self.values[x].shape[axis]
        if size:
            shape = [[], [3], [2, 2]][int(self.rng.integers(3))]
            self.add("Gather", [x, self.const(self.rng.integers(-size, size, size=shape), np.int64)], axis=axis)

    def _squeeze(self) -> None:
        if (x := self.pick(rank=1)) is None:
            return
        ones = [k for k, d in enumerate(self.values[x].shape) if d == 1]
        if ones and self.rng.random() < 0.6:
            self.add("Squeeze", [x, self.const([int(self.rng.choice(ones))], np.int64)])
        else:
            self.add("Unsqueeze", [x, self.const([int(self.rng.integers(self.values[x].ndim + 1))], np.int64)])

    def _matmul(self) -> None:
        if (x := self.pick("f", 2)) is None:
            return
        last = self.values[x].shape[-1]
        if self.rng.random() < 0.7:
            width = int(self.rng.choice([1, 3, 8, 16, 33]))
            weight = self.const(self.rng.standard_normal((last, width)) / np.sqrt(max(last, 1)), self.values[x].dtype)
            if self.add("MatMul", [x, weight]) and self.rng.random() < 0.6:
                self.add("Add", [f"v{len(self.nodes) - 1}_0", self.const(self.random([width], self.values[x].dtype))])
        else:
            fitting = [
                n
                for n, v in self.values.items()
                if v.dtype == self.values[x].dtype and v.ndim >= 2 and v.shape[-2] == last
            ]
            if fitting:
                self.add("MatMul", [x, str(self.rng.choice(fitting))])

    def _clip(self) -> None:
        if (x := self.pick("fi")) is not None:
            dtype = self.values[x].dtype
            self.add(
                "Clip",
                [
                    x,
                    self.const(-0.5 if dtype.kind == "f" else -3, dtype),
                    self.const(1.5 if dtype.kind == "f" else 4, dtype),
                ],
            )

    def _cumsum(self) -> None:
        if (x := self.pick("fi", 1)) is not None:
            axis = int(self.rng.integers(self.values[x].ndim))
            self.add(
                "CumSum",
                [x, self.const(axis, np.int64)],
                exclusive=int(self.rng.random() < 0.3),
                reverse=int(self.rng.random() < 0.3),
            )

    def _arg(self) -> None:
        if (x := self.pick("f", 1)) is not None:
            self.add(
                str(self.rng.choice(["ArgMax", "ArgMin"])),
                [x],
                axis=int(self._axes(self.values[x].ndim)[0]),
                keepdims=int(self.rng.random() < 0.5),
            )

    # -- the model ----------------------------------------------------------------------------------------------
    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in _reads(node)}
        made = [o for node in self.nodes for o in node.output]
        rng = np.random.default_rng(self.seed + 1)
        outputs = [n for n in made if n not in read or rng.random() < 0.08] or made[-1:]
        symbolic = rng.random() < 0.6
        names: dict[int, str] = {}

        def dims(name: str) -> list[Any]:
            if not symbolic:
                return list(self.values[name].shape)
            return [names.setdefault(d, f"s{len(names)}") if d > 1 and k < 2 else d
                    for k, d in enumerate(self.values[name].shape)]

        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), dims(n))
                  for n, v in self.feeds.items()]
        results = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.values[n].dtype), None)
                   for n in outputs]
        nodes, functions = self.nodes, []
        if len(nodes) > 3 and rng.random() < 0.25:
            nodes, functions = with_function(nodes, set(outputs), self.opset, rng)
        used = {name for node in nodes for name in _reads(node)}
        constants = [numpy_helper.from_array(v, n) for n, v in self.constants.items() if n in used]
        graph = helper.make_graph(nodes, f"fuzz{self.seed}", inputs, results, constants)
        domains = [helper.make_opsetid("", self.opset), *([helper.make_opsetid("local", 1)] if functions else [])]
        return helper.make_model(graph, opset_imports=domains, ir_version=10, functions=functions)

    def other_feeds(self, model: onnx.ModelProto) -> dict[str, Array]:
        """Inputs of other sizes where the model has symbols; {} where it has none, or other values are undefined."""
        rng = np.random.default_rng(self.seed + 3)
        sizes: dict[str, int] = {}
        feeds = {}
        # What a body that never runs would have given has no shape in ONNX Runtime.
        choices = [1, 2, 7, 19, 64] if any(n.op_type in ("Loop", "Scan") for n in self.nodes) else [0, 1, 2, 7, 19, 64]
        for info in model.graph.input:
            shape = []
            for d in info.type.tensor_type.shape.dim:
                other = int(rng.choice(choices))
                shape.append(sizes.setdefault(d.dim_param, other) if d.dim_param else d.dim_value)
            feeds[info.name] = self.random(shape, self.feeds[info.name].dtype)
        return {} if not sizes or self.settled or self.special else feeds


def _reads(node: onnx.NodeProto) -> list[str]:
    """The inputs, and what bodies read from outside (and inside: no name is used twice)."""
    inner = [i for a in node.attribute if a.type == onnx.AttributeProto.GRAPH for n in a.g.node for i in n.input]
    return [i for i in node.input if i] + inner


def with_function(nodes: list[onnx.NodeProto], outputs: set[str], opset: int, rng: np.random.Generator
                  ) -> tuple[list[onnx.NodeProto], list[onnx.FunctionProto]]:
    """Some nodes that follow each other as a call of a function."""
    first = int(rng.integers(len(nodes) - 1))
    last = int(rng.integers(first + 1, len(nodes)))
    inside, rest = nodes[first:last + 1], [*nodes[:first], *nodes[last + 1:]]
    if any(a.type == onnx.AttributeProto.GRAPH for n in inside for a in n.attribute):
        return nodes, []
    made = [o for n in inside for o in n.output]
    read = outputs | {i for n in rest for i in _reads(n)}
    takes = list(dict.fromkeys(i for n in inside for i in n.input if i and i not in made))
    gives = [o for o in made if o in read]
    function = helper.make_function("local", "Part", takes, gives, inside, [helper.make_opsetid("", opset)])
    call = helper.make_node("Part", takes, gives, domain="local", name="part")
    return [*nodes[:first], call, *nodes[last + 1:]], [function]


def run_node(node: onnx.NodeProto, values: dict[str, Array], opset: int) -> list[Any]:
    """The node by itself in ONNX Runtime; raises what that raises."""
    reads = [n for n in dict.fromkeys(_reads(node)) if n in values]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
        for n in reads
    ]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {n: values[n] for n in reads}))
