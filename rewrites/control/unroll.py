"""Loop and Scan of a few steps, as many on every run: the steps are written one after another.

    s, y = Loop(M, c, s0, body)    =    s1, y0 = body(0, true, s0);  s2, y1 = body(1, true, s1);  ...;  s = sM
                                        y = Concat(Unsqueeze(y0, 0), Unsqueeze(y1, 0), ...)
    s, y = Scan(s0, x, body)       =    s1, y0 = body(s0, x[0]);  s2, y1 = body(s1, x[1]);  ...

by the operators' definitions: a step reads the state that the step before left, its own number, and a condition that is
true, or there were no such step; `steps` says how many there are. Without a step the state is the initial one, and
what is collected has extent 0. The same nodes run in the same order on the same values, so results are equal bit for
bit; of float16 ONNX Runtime rounds less where two steps meet, because it has no kernels for many operators, computes in
float32 and drops the casts between them. What the number of the step decides (slices, branches, inner loops) is
constant then, and steps join in kernels.

All steps share the weights. Shapes that a body states may hold for one step only, so they are inferred again.

Handles: any graph, bodies included, from the inside out; state of any type, sequences included; every axis and
direction of a Scan. Refused: an unknown number of steps; more than 64; more than 2,000 nodes in the model, counted over
all that is unrolled; bodies that draw random numbers (each copy would draw the same) or have ops that may keep state;
what no step collects where its shape is unknown; and what ONNX's inference refuses, such as a step that fails.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs, subgraphs_of
from tilegraph.ops.prims import Decline
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.passes.invariants import inference_complaint
from tilegraph.passes.pipeline import Pipeline
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.control.loops import body_of
from tilegraph.rewrites.control.sink import copied
from tilegraph.rewrites.control.steps import first_inputs, loop_steps, scan_steps
from tilegraph.rewrites.normalise import NORMALISE, Fold, Shapes
from tilegraph.rewrites.normalise.edit import (
    PURE_DOMAINS,
    Names,
    is_op,
    is_random,
    is_used,
    let_go,
    nodes_inside,
    taken_initializers,
)
from tilegraph.rewrites.normalise.infer.info import shape_of, static_sizes
from tilegraph.rewrites.normalise.infer.rules_microsoft import RULES as MICROSOFT

MOST_STEPS = 64
MOST_NODES = 2000
_LOOPS = ("Loop", "Scan")


class UnrollLoops(Pass):
    name = "unroll-loops"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        if not any(is_op(node, *_LOOPS) for graph in all_graphs(model) for node in graph):
            return PassResult(False)
        limit = context.fold_limit_bytes
        trial, complaint = model.clone(), None
        Shapes().run(trial, PassContext())
        if self._rounds(trial, PassContext(fold_limit_bytes=limit)) and inference_complaint(model) is None:
            complaint = inference_complaint(trial)
        if complaint is not None:
            context.diagnostics.refused(self.name, "", f"a step of a loop contradicts itself: {complaint}", op="Loop")
            return PassResult(False)
        modified = self._rounds(model, context)
        if modified:
            Pipeline(NORMALISE).run(model, PassContext(fold_limit_bytes=limit))
        return PassResult(modified)

    def _rounds(self, model: ir.Model, context: PassContext) -> bool:
        """Unrolls, folds what then is constant, and so on: the steps of an outer loop may decide those of an inner."""
        left, modified = MOST_NODES, False
        while True:
            unroller = _Unroller(model, context, self.name, left)
            if not unroller.graph(model.graph):
                for node, reason in unroller.refusals:
                    context.diagnostics.refused(self.name, node.name or "", reason, op=node.op_type)
                return modified
            left, modified = unroller.left, True
            Pipeline([Shapes(), Fold()]).run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes))


class _Unroller:
    """`left`: the nodes that may still be written."""

    def __init__(self, model: ir.Model, context: PassContext, stage: str, left: int) -> None:
        self.model = model
        self.context = context
        self.stage = stage
        self.left = left
        self.opset = model.graph.opset_imports.get("", 1)
        self.names = Names(model)
        self.refusals: list[tuple[ir.Node, str]] = []

    def graph(self, graph: ir.Graph) -> bool:
        modified = False
        for node in list(graph):
            for inner in subgraphs_of(node):
                modified |= self.graph(inner)
            if not is_op(node, *_LOOPS) or not any(map(is_used, node.outputs)):
                continue
            try:
                self.unroll(node)
            except Decline as reason:
                self.refusals.append((node, reason.reason))
            else:
                modified = True
        return modified

    def unroll(self, node: ir.Node) -> None:
        steps = (_Loop if is_op(node, "Loop") else _Scan)(node, self.names, self.opset)
        size = 0
        for inner in nodes_inside(steps.body):
            size += 1
            if is_random(inner, self.opset):
                raise Decline(f"'{inner.name}' ({inner.op_type}) draws random numbers")
            if inner.domain not in PURE_DOMAINS and (inner.domain, inner.op_type) not in MICROSOFT:
                raise Decline(f"'{inner.name}' ({inner.domain}::{inner.op_type}) may keep state")
        count = steps.count
        if count > MOST_STEPS or count * size > self.left:
            raise Decline(f"{count} steps of {size} nodes: at most {MOST_STEPS} steps are written out, and "
                          f"{MOST_NODES} nodes in a model, of which {self.left} are left")
        steps.write(self.model.graph)
        self.left -= count * size
        self.context.diagnostics.took(self.stage, node.name or "", f"{count} steps of {size} nodes, one after another",
                                      op=node.op_type)


class _Steps:
    """What the steps of a Loop and of a Scan have in common. A subclass says in `examine` what there is."""

    count: int
    initial: list[ir.Value]  # the state before the first step
    state: list[ir.Value]  # the inputs of the body that hold it
    made: list[ir.Value]  # the outputs of the body: the state after the step, then what it adds to what is collected

    def __init__(self, node: ir.Node, names: Names, opset: int) -> None:
        self.node = node
        self.names = names
        self.build = Build(node, names, opset)
        self.body = body_of(node)
        given = [v for v in node.inputs[2 if is_op(node, "Loop") else 0:] if v is not None]
        if len(given) < len(self.body.inputs) - (2 if is_op(node, "Loop") else 0):
            raise Decline("an initial value is left out")
        self.examine(given, opset)

    def examine(self, given: list[ir.Value], opset: int) -> None:
        raise NotImplementedError

    def read(self, step: int) -> dict[ir.Value, ir.Value]:
        """Inputs of the body besides the state, and what stands for each in this step."""
        raise NotImplementedError

    def stacked(self, index: int, values: list[ir.Value]) -> ir.Value:
        """What `node` gives for the values of all steps, its `index`-th such output."""
        raise NotImplementedError

    def write(self, root: ir.Graph) -> None:
        states, state = len(self.initial), self.initial
        collected: list[list[ir.Value]] = [[] for _ in self.made[states:]]
        for step in range(self.count):
            mapping = {**dict(zip(self.state, state, strict=True)), **self.read(step)}
            for node in self.body:
                copy = copied(node, mapping, self.names)
                _forget_shapes(copy)
                self.build.made.append(copy)
            results = [mapping.get(v, v) for v in self.made]
            state = results[:states]
            for values, value in zip(collected, results[states:], strict=True):
                values.append(value)
        wanted = list(map(is_used, self.node.outputs))
        stacks = [self.stacked(k, v) if w else None for k, (v, w) in enumerate(zip(collected, wanted[states:],
                                                                                  strict=True))]
        self.build.constants += taken_initializers(self.body)
        let_go(self.node)
        self.build.finish([*(v if w else None for v, w in zip(state, wanted, strict=False)), *stacks], root,
                          owned=False)

    def stack(self, values: list[ir.Value], axis: int) -> ir.Value:
        lifted = [self.build.op("Unsqueeze", v, self.build.ints(axis)) for v in values]
        return lifted[0] if len(lifted) == 1 else self.build.op("Concat", *lifted, axis=axis)


class _Loop(_Steps):
    def examine(self, given: list[ir.Value], opset: int) -> None:
        self.count = loop_steps(self.node, opset, MOST_STEPS)
        self.initial, self.state, self.made = given, list(self.body.inputs[2:]), list(self.body.outputs[1:])
        for output, value in zip(self.node.outputs[len(given):], self.made[len(given):], strict=True):
            if self.count == 0 and is_used(output) and _extents(value) is None:
                raise Decline(f"there is no step, and what steps would add to '{output.name}' has an unknown shape")

    def read(self, step: int) -> dict[ir.Value, ir.Value]:
        read = zip(self.body.inputs[:2], first_inputs(self.node, step), strict=True)
        return {value: self.build.const(array) for value, array in read if is_used(value)}

    def stacked(self, index: int, values: list[ir.Value]) -> ir.Value:
        if values:
            return self.stack(values, 0)
        value = self.made[len(self.initial) + index]
        extents = _extents(value)
        assert extents is not None
        assert value.dtype is not None
        return self.build.const(np.zeros((0, *extents), value.dtype.numpy()), value.dtype)


class _Scan(_Steps):
    def examine(self, given: list[ir.Value], opset: int) -> None:
        attr = self.build.attr
        states = len(given) - attr("num_scan_inputs", 0)
        self.initial, self.scanned = given[:states], given[states:]
        self.state, self.slices = list(self.body.inputs[:states]), list(self.body.inputs[states:])
        self.made = list(self.body.outputs)
        self.axes = attr("scan_input_axes", [0] * len(self.scanned))
        self.backwards = attr("scan_input_directions", [0] * len(self.scanned))
        self.out_axes = attr("scan_output_axes", [0] * len(self.made[states:]))
        self.out_backwards = attr("scan_output_directions", [0] * len(self.made[states:]))
        self.count = scan_steps(self.scanned, self.axes)

    def read(self, step: int) -> dict[ir.Value, ir.Value]:
        given = {}
        for value, scanned, axis, backwards in zip(self.slices, self.scanned, self.axes, self.backwards, strict=True):
            at = self.build.const(np.array(self.count - 1 - step if backwards else step, np.int64))
            given[value] = self.build.op("Gather", scanned, at, axis=axis)
        return given

    def stacked(self, index: int, values: list[ir.Value]) -> ir.Value:
        return self.stack(values[::-1] if self.out_backwards[index] else values, self.out_axes[index])


def _extents(value: ir.Value) -> tuple[int, ...] | None:
    """The shape, where it is numbers, of a tensor that numpy has the type of."""
    return None if value.dtype in (None, ir.DataType.STRING) else static_sizes(shape_of(value.shape))


def _forget_shapes(node: ir.Node) -> None:
    """Leaves the shapes of one step to inference. ONNX Runtime needs the ranks of what the body of a Scan takes and
    gives, and of the number and the condition that the body of a Loop takes."""
    for output in node.outputs:
        output.shape = None
    for body in subgraphs_of(node):
        ends = [v for v in (*body.inputs, *body.outputs) if not v.is_initializer()]
        kept = ends if is_op(node, "Scan") else body.inputs[:2]
        ranks = [len(v.shape) if v.shape is not None and v in kept else None for v in ends]
        for inner in body:
            _forget_shapes(inner)
        for value, rank in zip(ends, ranks, strict=True):
            value.shape = None if rank is None else ir.Shape([None] * rank)
