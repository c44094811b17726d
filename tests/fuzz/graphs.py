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

Array = np.ndarray[Any, Any]
OPSET = 21
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31)
FLOATS = (np.float32, np.float32, np.float32, np.float32, np.float16, np.float64)
INTEGERS = (np.int64, np.int32, np.int8, np.uint8)
UNARY = (
    "Abs",
    "Neg",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Log",
    "Sqrt",
    "Erf",
    "Softplus",
    "Softsign",
    "Reciprocal",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Sin",
    "Cos",
    "Atan",
    "HardSwish",
    "Mish",
    "IsNaN",
    "Not",
    "Identity",
    "Sinh",
    "Asinh",
)
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
BINARY = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Pow",
    "PRelu",
    "Greater",
    "Less",
    "Equal",
    "GreaterOrEqual",
    "LessOrEqual",
    "And",
    "Or",
    "Xor",
    "Mod",
)
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "ReduceL1",
)
# What ONNX Runtime makes of NaN here depends on layout and vector width; ours propagate it.
CHOOSING = ("ReduceMax", "ReduceMin", "ArgMax", "ArgMin")
# Where the last bit of an operand decides between far results: only on values that nobody rounds.
JUMPING = frozenset(
    {
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Greater",
        "Less",
        "Equal",
        "GreaterOrEqual",
        "LessOrEqual",
        "Mod",
        "ArgMax",
        "ArgMin",
        "ThresholdedRelu",
        "IsInf",
        "IsNaN",
    }
)
EXACT = frozenset(
    {
        "Abs",
        "Neg",
        "Relu",
        "Identity",
        "Not",
        "Max",
        "Min",
        "Where",
        "ReduceMax",
        "ReduceMin",
        "Clip",
        "Reshape",
        "Pad",
        "Transpose",
        "Slice",
        "Concat",
        "Split",
        "Expand",
        "Tile",
        "Gather",
        "Squeeze",
        "Unsqueeze",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
    }
)
STEPS = (
    "unary",
    "unary",
    "attribute",
    "binary",
    "binary",
    "binary",
    "constant",
    "constant",
    "where",
    "cast",
    "reduce",
    "reduce",
    "norm",
    "reshape",
    "transpose",
    "slice",
    "concat",
    "split",
    "pad",
    "expand",
    "tile",
    "gather",
    "squeeze",
    "matmul",
    "clip",
    "cumsum",
    "conv",
    "branch",
    "arg",
)


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

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.special = (
            self.rng.random() < 0.15
        )  # NaN, infinities, zeros of both signs, subnormals, huge and tiny numbers
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
            getattr(self, f"_{self.rng.choice(STEPS)}")()

    # -- values -------------------------------------------------------------------------------------------------
    def random(self, shape: Any, dtype: np.dtype[Any]) -> Array:
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            low, high = (max(limits.min, -9), 9) if self.rng.random() < 0.7 else (limits.min, limits.max)
            return np.asarray(self.rng.integers(low, high, size=shape, dtype=np.int64).astype(dtype))
        made = np.asarray(self.rng.standard_normal(shape)).astype(dtype)
        if self.special and made.size:
            limits = np.finfo(dtype)
            odd = np.array(
                [
                    np.nan,
                    np.inf,
                    -np.inf,
                    0,
                    -0.0,
                    limits.tiny,
                    -limits.smallest_subnormal,
                    limits.max,
                    limits.min,
                    88.7,
                    -104,
                ],
                dtype,
            )
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
        if op in CHOOSING and any(
            np.isnan(v).any() for v in map(self.values.get, inputs) if v is not None and v.dtype.kind == "f"
        ):
            return False
        if op in ("MatMul", "Conv") and any(not np.isfinite(self.values[i]).all() for i in inputs):
            return False  # the order of its sums decides between an infinity and NaN, in ONNX Runtime too
        inexact = any(i in self.rounded for i in inputs)
        if inexact and (op in JUMPING or (op == "Cast" and attributes["to"] not in (1, 10, 11))):
            return False
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", domain=domain, **attributes)
        try:
            results = run_node(node, self.values)
        except Exception:
            return False
        if any(not isinstance(r, np.ndarray) or r.size > 40000 or r.ndim > 6 for r in results):
            return False
        self.nodes.append(node)
        if inexact or op not in EXACT:
            self.rounded.update(n for n, r in zip(names, results, strict=True) if r.dtype.kind == "f")
        self.values.update(zip(names, results, strict=True))
        return True

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
            self.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(target))

    def _axes(self, rank: int) -> list[int]:
        count = int(self.rng.integers(1, rank + 1)) if self.rng.random() < 0.4 else 1
        axes = sorted(int(a) for a in self.rng.choice(rank, size=count, replace=False))
        if count == 1 and self.rng.random() < 0.6:
            axes = [rank - 1]
        return [a - rank if self.rng.random() < 0.5 else a for a in axes]

    def _reduce(self) -> None:
        if (x := self.pick("fi", 1)) is not None:
            axes = self.const(self._axes(self.values[x].ndim), np.int64)
            self.add(str(self.rng.choice(REDUCTIONS)), [x, axes], keepdims=int(self.rng.random() < 0.6))

    def _norm(self) -> None:
        x = self.pick("f", 1)
        if x is None:
            return
        value, last = self.values[x], self.values[x].shape[-1]
        kind = self.rng.integers(4)
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

    def _conv(self) -> None:
        if (x := self.pick("f", 3)) is None or self.values[x].ndim > 4:
            return
        channels, spatial = self.values[x].shape[1], self.values[x].ndim - 2
        group = channels if self.rng.random() < 0.3 else 1
        width = channels if group > 1 else int(self.rng.choice([1, 4, 16]))
        kernel = int(self.rng.choice([1, 1, 3]))
        weight = self.rng.standard_normal((width, max(1, channels // max(group, 1)), *[kernel] * spatial)) / 3
        self.add(
            "Conv",
            [x, self.const(weight, self.values[x].dtype), self.const(self.random([width], self.values[x].dtype))],
            group=max(group, 1),
            pads=[kernel // 2] * (2 * spatial),
            strides=[int(self.rng.choice([1, 1, 2]))] * spatial,
        )

    def _arg(self) -> None:
        if (x := self.pick("f", 1)) is not None:
            self.add(
                str(self.rng.choice(["ArgMax", "ArgMin"])),
                [x],
                axis=int(self._axes(self.values[x].ndim)[0]),
                keepdims=int(self.rng.random() < 0.5),
            )

    def _branch(self) -> None:
        """An If whose branches read the outer value; the condition depends on the inputs."""
        x = self.pick("f", 1)
        if x is None or self.values[x].size == 0:
            return
        kind = helper.np_dtype_to_tensor_dtype(self.values[x].dtype)
        k = len(self.nodes)

        def body(name: str, first: str, second: str) -> onnx.GraphProto:
            nodes = [
                helper.make_node(first, [x], [f"b{k}{name}_a"], name=f"b{k}{name}0"),
                helper.make_node(second, [f"b{k}{name}_a", x], [f"b{k}{name}_b"], name=f"b{k}{name}1"),
            ]
            return helper.make_graph(
                nodes, f"b{k}{name}", [], [helper.make_tensor_value_info(f"b{k}{name}_b", kind, None)]
            )

        flags = self.const(list(range(self.values[x].ndim)), np.int64)
        before = len(self.nodes)
        if not self.add("ReduceMax", [x, flags], keepdims=0):
            return
        zero = self.const(0.5, self.values[x].dtype)
        if self.add("Greater", [f"v{before}_0", zero]):
            self.add(
                "If",
                [f"v{before + 1}_0"],
                then_branch=body("t", "Tanh", "Mul"),
                else_branch=body("e", "Sigmoid", "Sub"),
            )

    # -- the model ----------------------------------------------------------------------------------------------
    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        made = [o for node in self.nodes for o in node.output]
        rng = np.random.default_rng(self.seed + 1)
        outputs = [n for n in made if n not in read or rng.random() < 0.08] or made[-1:]
        symbolic = rng.random() < 0.6
        names: dict[int, str] = {}

        def dims(name: str) -> list[Any]:
            if not symbolic:
                return list(self.values[name].shape)
            return [
                names.setdefault(d, f"s{len(names)}") if d > 1 and k < 2 else d
                for k, d in enumerate(self.values[name].shape)
            ]

        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), dims(n))
            for n, v in self.feeds.items()
        ]
        results = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.values[n].dtype), None)
            for n in outputs
        ]
        used = {name for node in self.nodes for name in node.input}
        constants = [numpy_helper.from_array(v, n) for n, v in self.constants.items() if n in used]
        graph = helper.make_graph(self.nodes, f"fuzz{self.seed}", inputs, results, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def run_node(node: onnx.NodeProto, values: dict[str, Array]) -> list[Any]:
    """The node by itself in ONNX Runtime; raises what that raises."""
    reads = list(
        dict.fromkeys(
            [i for i in node.input if i]
            + [
                i
                for a in node.attribute
                if a.type == onnx.AttributeProto.GRAPH
                for n in a.g.node
                for i in n.input
                if i in values
            ]
        )
    )
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
        for n in reads
    ]
    outputs = [onnx.ValueInfoProto(name=o) for o in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {n: values[n] for n in reads}))
