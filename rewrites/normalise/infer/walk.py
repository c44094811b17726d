"""The forward walk: every graph in topological order, subgraphs where they occur."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.rewrites.normalise.infer import (
    arith,
    cpp,
    rules_made,
    rules_math,
    rules_microsoft,
    rules_views,
    rules_windows,
)
from tilegraph.rewrites.normalise.infer.info import Context, Info, Rule, Shape, info_of_tensor, shape_of
from tilegraph.spec.dims import Dim

RULES: dict[tuple[str, str], Rule] = {
    **rules_made.RULES, **rules_math.RULES, **rules_microsoft.RULES, **rules_views.RULES, **rules_windows.RULES}
_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
_CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))
_ROUNDS = 6  # of a loop body until its carried shapes settle


@dataclass
class Inference:
    """What the walk found. `conflicts`: values whose declared shape cannot be true, with both shapes."""

    infos: dict[ir.Value, Info] = field(default_factory=dict)
    conflicts: dict[ir.Value, tuple[Shape, Shape]] = field(default_factory=dict)


def infer(model: ir.Model) -> Inference:
    """Types, shapes and contents of every value of the main graph and its subgraphs.

    Declared shapes of intermediate values fill in what the inference does not know, unless one of them contradicts
    it: then all of them are taken to be stale (left from another batch size, say) and none is used. None is used behind
    an initializer that a caller may override, either.
    """
    found = _Walk(model, trust=True).run()
    if found.conflicts:
        conflicts = found.conflicts
        found = _Walk(model, trust=False).run()
        found.conflicts = conflicts
    return found


class _Walk:
    def __init__(self, model: ir.Model, *, trust: bool) -> None:
        self.model = model
        self.trust = trust
        self.found = Inference()
        self.opsets = model.graph.opset_imports
        # Values whose declared shapes say nothing, and those behind them. Most are from onnx's inference, which takes a
        # constant that a caller may override for the value of every run, and counts windows that ONNX Runtime does not.
        self.open = {v for v in model.graph.inputs if v.is_initializer()}

    def run(self) -> Inference:
        for value in self.model.graph.inputs:
            self.found.infos[value] = declared_info(value)
        self.graph(self.model.graph)
        return self.found

    def graph(self, graph: ir.Graph) -> None:
        infos = self.found.infos
        for value in graph.initializers.values():
            if value.const_value is not None and value not in infos:
                infos[value] = info_of_tensor(value.const_value)
        for node in graph:
            self.node(node)

    def info(self, value: ir.Value | None) -> Info | None:
        if value is None:
            return None
        found = self.found.infos.get(value)
        return found if found is not None else declared_info(value, shape=self.trust)

    def node(self, node: ir.Node) -> None:
        inputs = [self.info(v) for v in node.inputs]
        if node.op_identifier() in self.model.functions:
            results: Sequence[Info] = [declared_info(o) for o in node.outputs]
        else:
            results = self.results(node, inputs)
        if _counts_otherwise(node) and any(None in (info.shape or ()) for info in results):
            self.open.update(node.outputs)
        self.spread(node)
        for index, output in enumerate(node.outputs):
            info = results[index] if index < len(results) else Info()
            # Where branches or iterations disagree, no single declared shape can be true.
            settled = node.domain == "" and node.op_type in _CONTROL_FLOW
            self.found.infos[output] = info if settled else self.reconciled(output, info)

    def spread(self, node: ir.Node) -> None:
        """Notes the outputs of a node that reads, or whose bodies read, what a caller may override."""
        bodies = list(subgraphs_of(node)) if self.open else []
        if any(v in self.open for v in (*node.inputs, *(o for b in bodies for n in b for o in n.inputs))) \
                or any(o in self.open for b in bodies for o in b.outputs):
            self.open.update(node.outputs)

    def results(self, node: ir.Node, inputs: list[Info | None]) -> Sequence[Info]:
        if node.domain == "" and node.op_type in _CONTROL_FLOW:
            return {"If": self.branch, "Loop": self.loop, "Scan": self.scan}[node.op_type](node, inputs)
        rule = RULES.get((node.domain, node.op_type))
        if rule is not None:
            found = rule(Context(node, inputs, self.opsets.get("", 1)))
            if found is not None:
                return found
        return cpp.infer_node(node, self.found.infos, self.opsets) or []

    def reconciled(self, value: ir.Value, info: Info) -> Info:
        """`info` with the gaps filled from what the model declares, and contradictions noted."""
        given = declared_info(value)
        dtype = info.dtype if info.dtype is not None else given.dtype
        declared = given.shape
        if not self.trust or declared is None or value in self.open:
            return Info(dtype, info.shape, info.contents)
        if info.shape is None:
            return Info(dtype, declared, info.contents)
        if contradicts(info.shape, declared):
            self.found.conflicts.setdefault(value, (info.shape, declared))
            return Info(dtype, info.shape, info.contents)
        shape = tuple(d if i is None or _may_be(i, d) else i for i, d in zip(info.shape, declared, strict=True))
        return Info(dtype, shape, info.contents)

    # -- control flow ------------------------------------------------------------------------------------
    def branch(self, node: ir.Node, inputs: list[Info | None]) -> Sequence[Info]:
        graphs = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        for graph in graphs:
            self.graph(graph)
        outcomes = [[self.info(o) or Info() for o in graph.outputs] for graph in graphs]
        condition = inputs[0].dims() if inputs and inputs[0] is not None else None
        zero = rules_math.equal_zero(condition[0]) if condition else None
        if zero is not None:
            return outcomes[1 if zero else 0]
        return [merged(a, b) for a, b in zip(*outcomes, strict=True)]

    def loop(self, node: ir.Node, inputs: list[Info | None]) -> Sequence[Info]:
        body = node.attributes["body"].as_graph()
        counter, condition, *carried = body.inputs
        state = [Info(i.dtype, i.shape) if i is not None else Info() for i in inputs[2:]]
        # ONNX Runtime gives them the shapes of M and of the initial condition, [] or [1], and asks for them.
        for value, dtype, given in ((counter, ir.DataType.INT64, inputs[0] if inputs else None),
                                    (condition, ir.DataType.BOOL, inputs[1] if len(inputs) > 1 else None)):
            self.found.infos[value] = filled(value, Info(dtype, () if given is None else given.shape))
        state = self.settle(body, carried, state, body.outputs[1 : 1 + len(carried)])
        collected = [self.info(o) or Info() for o in body.outputs[1 + len(carried):]]
        trips = self.trips(inputs, body, condition)
        return state + [Info(i.dtype, None if i.shape is None else (trips, *i.shape)) for i in collected]

    def trips(self, inputs: list[Info | None], body: ir.Graph, condition: ir.Value) -> Dim | None:
        """The number of iterations, when the loop never ends early."""
        limit = inputs[0].dims() if inputs and inputs[0] is not None else None
        first = inputs[1].dims() if len(inputs) > 1 and inputs[1] is not None else [Dim.of(1)]
        going_on = body.outputs[0]
        kept = self.info(going_on)
        same = going_on is condition or (
            (producer := going_on.producer()) is not None
            and producer.op_type == "Identity" and producer.inputs[0] is condition)
        stays = same or (kept is not None and kept.dims() == [Dim.of(1)])
        if not limit or not first or first != [Dim.of(1)] or not stays or limit[0] is None:
            return None
        return limit[0] if arith.is_nonnegative(limit[0]) else arith.largest(limit[0], Dim.of(0))

    def scan(self, node: ir.Node, inputs: list[Info | None]) -> Sequence[Info]:
        if self.opsets.get("", 1) < 9:
            return []
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        states = len(node.inputs) - count
        axes = node.attributes["scan_input_axes"].as_ints() if "scan_input_axes" in node.attributes else (0,) * count
        state = [Info(i.dtype, i.shape) if i is not None else Info() for i in inputs[:states]]
        length: Dim | None = None
        for value, info, axis in zip(body.inputs[states:], inputs[states:], axes, strict=True):
            shape = info.shape if info is not None else None
            if shape is not None and shape[axis] is not None and (length is None or not length.is_static):
                length = shape[axis]
            at = axis + len(shape) if shape is not None and axis < 0 else axis
            inner = None if shape is None else (*shape[:at], *shape[at + 1:])
            self.found.infos[value] = filled(value, Info(info.dtype if info is not None else None, inner))
        state = [filled(v, i) for v, i in zip(body.inputs[:states], state, strict=True)]
        state = self.settle(body, body.inputs[:states], state, body.outputs[:states])
        # No shape changes from step to step here, and ONNX Runtime asks for those of all results.
        for value in body.outputs:
            self.found.infos[value] = filled(value, self.info(value) or Info())
        outputs = body.outputs[states:]
        out_axes = (node.attributes["scan_output_axes"].as_ints() if "scan_output_axes" in node.attributes
                    else (0,) * len(outputs))
        collected = []
        for value, axis in zip(outputs, out_axes, strict=True):
            info = self.info(value) or Info()
            if info.shape is None:
                collected.append(Info(info.dtype))
                continue
            at = axis + len(info.shape) + 1 if axis < 0 else axis
            collected.append(Info(info.dtype, (*info.shape[:at], length, *info.shape[at:])))
        return state + collected

    def settle(self, body: ir.Graph, inputs: Sequence[ir.Value], state: list[Info],
               outputs: Iterable[ir.Value]) -> list[Info]:
        """Runs the body until the carried shapes are those of every iteration."""
        outputs = list(outputs)
        trust, self.trust = self.trust, False  # what the body declares may hold for the first iteration only
        try:
            for _ in range(_ROUNDS):
                for value, info in zip(inputs, state, strict=True):
                    self.found.infos[value] = info
                self.graph(body)
                after = [merged(a, self.info(o) or Info()) for a, o in zip(state, outputs, strict=True)]
                after = [Info(i.dtype, i.shape) for i in after]
                if after == state:
                    return state
                state = after
            state = [Info(i.dtype) for i in state]
            for value, info in zip(inputs, state, strict=True):
                self.found.infos[value] = info
            self.graph(body)
            return state
        finally:
            self.trust = trust


def _counts_otherwise(node: ir.Node) -> bool:
    """Whether onnx's inference may find another number of windows than ONNX Runtime makes: of pools that round up, and
    of dilated ones that pad by themselves."""
    if node.op_type not in _POOLS or node.domain != "":
        return False
    ceil, auto = node.attributes.get("ceil_mode"), node.attributes.get("auto_pad")
    return bool(ceil is not None and ceil.as_int()) or (auto is not None and auto.as_string().startswith("SAME"))


def declared_info(value: ir.Value, *, shape: bool = True) -> Info:
    """What the model says of a tensor; of a sequence or an optional, whose `dtype` is that of its elements, nothing."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return Info()
    return Info(value.dtype, shape_of(value.shape) if shape else None)


def filled(value: ir.Value, info: Info) -> Info:
    """`info`, with the declared shape where there is none."""
    return info if info.shape is not None else Info(info.dtype, declared_info(value).shape, info.contents)


def contradicts(inferred: Shape, declared: Shape) -> bool:
    """Whether a declared shape cannot be the inferred one: another rank or integer, or an integer for a symbol."""
    if len(inferred) != len(declared):
        return True
    return any(i is not None and d is not None and d.is_static and i != d and not _may_be(i, d)
               for i, d in zip(inferred, declared, strict=True))


def _may_be(inferred: Dim, declared: Dim | None) -> bool:
    """Whether a declared integer is one of the few that the inferred expression can take, such as 1 of min(1, seq)."""
    if declared is None or not declared.is_static or inferred.is_static:
        return False
    low, high = arith.bounds(inferred)
    return low is not None and high is not None and low <= declared.value <= high


def merged(a: Info, b: Info) -> Info:
    """What holds of a value that is either `a` or `b`."""
    dtype = a.dtype if a.dtype == b.dtype else None
    shape: Shape | None = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        shape = tuple(x if x is not None and x == y else None for x, y in zip(a.shape, b.shape, strict=True))
    contents = None
    if a.contents is not None and b.contents is not None and a.contents.shape == b.contents.shape:
        contents = rules_math.elementwise(lambda x, y: x if x is not None and x == y else None, a.contents, b.contents)
    return Info(dtype, shape, contents)
