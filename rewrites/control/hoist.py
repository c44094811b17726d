"""What a Loop or Scan computes again in each step, or could compute for all steps at once, is computed before it.

Loop-invariant code: a node that reads captured values only gives the same in each step, so it leaves the body.

Batching over time: a product of x[i] and a captured matrix needs no state, so it is computed for all i before the loop,
and the body reads its step; see `over_time` for the proof. An exported cell

    h' = tanh(x[i] W + b + h R)

keeps one product in its body, and the other one, of T B rows, reads W once instead of T times. What is left is ordinary
nodes: GEMM and region kernels follow.

A loop of 0 steps runs nothing of its body, so only nodes leave that cannot fail (`certain`): a Gather with a computed
index, a division of integers and what has no rule stay, random nodes as well. Work is done in vain then, and only then:
batched are steps that all are read.

A product of x[i] and the state, joined, is taken apart for that; see `parts`.

Handles: Loop and Scan in any graph, from the inside out; steps by Gather or by a slice of one element, along any axis,
forwards or backwards, from any start; counters that are carried along; scanned inputs of any axis and direction; MatMul
and Gemm, element-wise operators, and views, before and after them; symbolic lengths and batches, any dtype.

Refused, with a reason: an index that is not a number of the iteration; a trip count that is not the extent, or not
known to be; a condition that may end the loop early; results of more than 256 MiB, or of 1 MiB a step where the number
of steps is not known; extents that may not fit; products of what the state leads to; opsets below 13.

Runs before loops of few steps are unrolled: their steps then share one product, instead of having one each.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs, subgraphs_of
from tilegraph.ops.prims import Decline
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.passes.pipeline import Pipeline
from tilegraph.rewrites.algebra.constants import Constants
from tilegraph.rewrites.control.certain import may_fail
from tilegraph.rewrites.control.loops import body_of
from tilegraph.rewrites.control.over_time import Steps, lift_initializer
from tilegraph.rewrites.control.parts import take_apart
from tilegraph.rewrites.normalise import NORMALISE, Shapes
from tilegraph.rewrites.normalise.edit import is_op


class HoistFromLoops(Pass):
    name = "hoist-from-loops"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        loops = [n for graph in reversed(list(all_graphs(model))) for n in graph if is_op(n, "Loop", "Scan")]
        if not loops:
            return PassResult(False)
        modified = False
        constants = Constants(model, context)
        for node in loops:
            modified |= self._loop(node, constants, context)
        if modified:
            Pipeline(NORMALISE).run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes))
        return PassResult(modified)

    def _loop(self, node: ir.Node, constants: Constants, context: PassContext) -> bool:
        model, report, told = constants.model, context.diagnostics, (self.name, node.name or "")
        moved = _invariants(node)
        try:
            steps = Steps(node, constants.names, model.graph)
            apart, whole = take_apart(steps, constants)
            found = apart
            while found:  # what was taken apart may be a part of the next one
                Shapes().run(model, PassContext())
                moved += _invariants(node)
                steps = Steps(node, constants.names, model.graph)
                found, whole = take_apart(steps, constants)
        except Decline as reason:
            report.refused(*told, reason.reason, op=node.op_type)
            return bool(moved)
        if moved:
            report.took(*told, f"{len(moved)} nodes that give the same in each step are computed before it",
                        op=node.op_type)
        products = steps.move()
        if products:
            report.took(*told, f"{', '.join(p.name or '' for p in products)}: computed for all steps at once",
                        op=node.op_type)
            Shapes().run(model, PassContext())  # for the loop around this one
        for product, why in (*whole, *steps.refusals()):
            report.refused(*told, f"{product.op_type} {product.name} stays in it: {why}", op=node.op_type)
        return bool(moved or products or apart)


def _invariants(loop: ir.Node) -> list[ir.Node]:
    """Takes nodes that read captured values only out of the body, in their order; returns them."""
    body, outer = body_of(loop), loop.graph
    assert outer is not None
    inside: set[ir.Value] = set(body.inputs)
    moved = []
    for node in list(body):
        # A body may not give back a value of the graph around it.
        if any(v in inside for v in node.inputs) or any(v.is_graph_output() for v in node.outputs) \
                or any(subgraphs_of(node)) or not node.inputs or may_fail(node) is not None:
            inside.update(node.outputs)
            continue
        for value in set(node.inputs):
            if value is not None and value.is_initializer() and value.graph is body:
                lift_initializer(value, body, outer)
        body.remove(node)
        outer.insert_before(loop, node)
        moved.append(node)
    return moved
