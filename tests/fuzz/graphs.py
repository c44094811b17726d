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

from tests.fuzz.guards import EXACT, JUMPING, levelled, one_answer
from tests.fuzz.profiles import PROFILES
from tests.fuzz.values import FLOATS, INTEGERS, SIZES, Array, random_values

OPSETS = (8, 9, 10, 11, 12, 13, 13, 14, 14, 15, 16, 17, 17, 18, 18, 19, 20, 21, 21, 21, 22, 23, 23, 23, 24, 25, 26)
SHARES = {"any": 0.3, "elements": 0.16, "images": 0.16, "tokens": 0.18, "integers": 0.1, "state": 0.1}
LENGTHS = (*SIZES[2:], 70, 130)  # of what attends to itself: more than a block of keys, too
# How values are called: plainly, or as exporters and users do.
STYLES = ("{}", "{}", "{}", "{}", "/model/layers.0/{}", "{}:0", "tilegraph {} é", "{}" + "_" * 120)


@dataclass
class Graph:
    """One random model (tests.fuzz.finish makes it of this), and `feeds` that it runs on."""

    seed: int
    length: int = 0
    profile: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # inputs of which no other numbers than those in `feeds` are right
    rounded: set[str] = field(default_factory=set)  # values that two right programs may give differently
    outs: list[str] = field(default_factory=list)  # the outputs of the node that was added last
    opset: int = 0
    settled: bool = False  # other values of the inputs would have undefined results

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.opset = int(self.rng.choice(OPSETS))
        self.style = str(self.rng.choice(STYLES))
        self.profile = self.profile or str(self.rng.choice(list(SHARES), p=list(SHARES.values())))
        self.special = self.rng.random() < 0.15  # NaN, infinities, zeros, subnormals, huge and tiny numbers
        self.names = 0
        shape = self._start()
        if self.rng.random() < 0.04:
            shape[int(self.rng.integers(len(shape)))] = 0
        self.shape = tuple(shape)
        for k in range(int(self.rng.integers(1, 4))):
            dtype = (self.rng.choice(FLOATS) if k == 0 or self.rng.random() < 0.75 else
                     self.rng.choice((*INTEGERS, "bool")))
            dims = [1 if k and self.rng.random() < 0.2 else d for d in shape]
            name = self.style.format(f"x{k}")
            self.feeds[name] = self.values[name] = self.random(dims, np.dtype(dtype))
        wanted = self.length or int(self.rng.integers(3, 22))
        steps, weights = PROFILES[self.profile]
        for _ in range(wanted * 4):
            if len(self.nodes) >= wanted:
                break
            steps[int(self.rng.choice(len(steps), p=weights))](self)

    def _start(self) -> list[int]:
        """The shape of the first input."""
        if self.profile == "images":
            batch, channels = int(self.rng.choice([1, 1, 2, 3])), int(self.rng.choice([1, 3, 4, 8, 16, 20]))
            spatial = [int(d) for d in self.rng.choice([1, 2, 6, 7, 8, 12, 16, 17, 24], size=2)]
            return [batch, channels, *(spatial if self.rng.random() < 0.9 else spatial[:1])]
        if self.profile == "tokens":
            return [int(self.rng.choice([1, 1, 2])), *(int(self.rng.choice(c)) for c in (LENGTHS, (8, 16, 32, 48)))]
        rank = int(self.rng.integers(3 if self.profile == "state" else 1, 5))
        return [int(self.rng.choice(SIZES)) for _ in range(rank)]

    # -- values -------------------------------------------------------------------------------------------------
    def random(self, shape: Any, dtype: np.dtype[Any]) -> Array:
        return random_values(self.rng, shape, dtype, self.special)

    def pick(self, kinds: str = "fiub", rank: int = 0) -> str | None:
        names = [n for n, v in self.values.items() if v.dtype.kind in kinds and v.ndim >= rank
                 and n not in self.constants]
        if not names:
            return None
        return str(self.rng.choice(names[-6:] if self.rng.random() < 0.7 else names))

    def alike(self, x: str) -> str:
        """Some value of the dtype of x, which may be x."""
        return str(self.rng.choice([n for n, v in self.values.items() if v.dtype == self.values[x].dtype
                                    and n not in self.constants] or [x]))

    def finite(self, x: str, limit: float) -> bool:
        return bool(np.isfinite(self.values[x]).all()) and float(np.abs(self.values[x]).max(initial=0)) <= limit

    def const(self, array: Any, dtype: Any = None) -> str:
        name = self.style.format(f"c{len(self.constants)}")
        self.constants[name] = self.values[name] = np.asarray(array, dtype)
        return name

    def drop(self, constant: str) -> None:
        del self.constants[constant], self.values[constant]

    def input(self, array: Array) -> str:
        """Another input of the model, whose other values are drawn from these."""
        name = self.style.format(f"x{len(self.feeds)}")
        self.feeds[name] = self.values[name] = array
        self.asked.add(name)
        return name

    def fresh(self) -> str:
        """A name that nothing has."""
        self.names += 1
        return self.style.format(f"i{self.names}")

    def results(self, count: int) -> list[str]:
        return [self.style.format(f"v{len(self.nodes)}_{k}") for k in range(count)]

    # -- nodes --------------------------------------------------------------------------------------------------
    def add(self, op: str, inputs: list[str], outputs: int | list[bool] = 1, domain: str = "",
            **attributes: Any) -> bool:
        """Adds the node if ONNX Runtime runs it on these values and its results are not too large. `outputs`: how
        many, or which of them are wanted."""
        operands = [self.values[i] for i in inputs if i]
        if not one_answer(op, operands):
            return False
        inexact = any(i in self.rounded for i in inputs)
        if inexact and levelled(op, operands):
            return False
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        names = [n if w else "" for n, w in zip(self.results(len(wanted)), wanted, strict=True)]
        node = helper.make_node(op, inputs, names, name=self.style.format(f"n{len(self.nodes)}"), domain=domain,
                                **attributes)
        if op == "MaxPool" and not _pools(node, operands[0], self.opset):
            return False
        results = self._tried([node], [n for n in names if n])
        if results is None or (inexact and (op in JUMPING or (op.startswith("Cast") and results[0].dtype.kind != "f"))):
            return False
        if any(r.dtype == np.float16 and np.isinf(r).any() and all(np.isfinite(v).all() for v in operands
                                                                   if v.dtype.kind == "f") for r in results):
            return False  # regions compute in float32, and keep what is beyond float16's range
        self._take([node], names, results, inexact or op not in EXACT)
        return True

    def put(self, op: str, inputs: list[str], outputs: int | list[bool] = 1, **attributes: Any) -> str | None:
        """`add`, and the name of the first output."""
        return self.outs[0] if self.add(op, inputs, outputs, **attributes) else None

    def together(self, nodes: list[onnx.NodeProto], results: list[str], *, exact: bool = True) -> bool:
        """Adds nodes that are tried as one, because what passes between them is no array. `exact`: they only move
        numbers."""
        values = self._tried(nodes, results)
        if values is None:
            return False
        known = {r for n in nodes for r in free_names(n)}
        self._take(nodes, results, values, not exact or any(r in self.rounded for r in known))
        return True

    def _tried(self, nodes: list[onnx.NodeProto], wanted: list[str]) -> list[Array] | None:
        try:
            results = run_nodes(nodes, wanted, self)
        except Exception:
            return None  # whatever ONNX Runtime says, it does not run them
        if any(not isinstance(r, np.ndarray) or r.dtype.kind not in "fiub" or r.size > 70000 or r.ndim > 6
               for r in results):
            return None
        return results

    def _take(self, nodes: list[onnx.NodeProto], names: list[str], results: list[Array], inexact: bool) -> None:
        self.nodes += nodes
        self.outs = names
        for name, result in zip([n for n in names if n], results, strict=True):
            self.values[name] = result
            if inexact and result.dtype.kind == "f":
                self.rounded.add(name)


def _pools(node: onnx.NodeProto, x: Array, opset: int) -> bool:
    """Whether the pool has results: ONNX Runtime's process dies of one without (float32; float16 where it casts)."""
    info = helper.make_tensor_value_info(node.input[0], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph([node], "pool", [info], [onnx.ValueInfoProto(name=node.output[0])])
    try:
        made = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports(opset, [node])))
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return True  # ONNX Runtime says what is wrong
    return all(d.dim_value > 0 for d in made.graph.output[0].type.tensor_type.shape.dim)


def free_names(node: onnx.NodeProto) -> list[str]:
    """What the node reads: its inputs, and what its bodies read from outside of them."""
    return list(dict.fromkeys([*(i for i in node.input if i), *captured_names(node)]))


def captured_names(node: onnx.NodeProto) -> list[str]:
    """What the bodies of the node read from outside of them."""
    found: list[str] = []
    for body in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
        known = {v.name for v in body.input} | {t.name for t in body.initializer}
        for inner in body.node:
            found += [i for i in free_names(inner) if i not in known]
            known |= set(inner.output)
        found += [o.name for o in body.output if o.name not in known]
    return found


def imports(opset: int, nodes: list[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
    """The opset of ai.onnx, and version 1 of the other domains that the nodes are of."""
    others = sorted({n.domain for n in nodes} - {""})
    return [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in others)]


def run_nodes(nodes: list[onnx.NodeProto], wanted: list[str], g: Graph) -> list[Any]:
    """The nodes by themselves in ONNX Runtime; raises what that raises."""
    reads = [n for n in dict.fromkeys(r for node in nodes for r in free_names(node)) if n in g.values]
    given = [n for n in reads if n not in g.constants]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(g.values[n].dtype), g.values[n].shape)
             for n in given]
    constants = [numpy_helper.from_array(g.constants[n], n) for n in reads if n in g.constants]
    graph = helper.make_graph(nodes, "one", infos, [onnx.ValueInfoProto(name=o) for o in wanted], constants)
    functions = list(g.functions.values()) if any(n.domain == "local" for n in nodes) else []
    model = helper.make_model(graph, opset_imports=imports(g.opset, nodes), ir_version=10, functions=functions)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(wanted, {n: g.values[n] for n in given}))
