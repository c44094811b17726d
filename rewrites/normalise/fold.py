"""Constant folding: what does not depend on the inputs is computed now.

Handles: ops of `evaluate` on constants; any value whose contents `shapes` found to be integers (Shape, Size and what
is computed from them, under frozen or fixed extents); If with a decided condition, whose branch moves out.

Growth is what the new initializers add, less the constants that nothing uses any more and the records of the nodes that
went; `context.fold_limit_bytes` bounds it for the model. Memory-mapped constants do not count as freed: they cost no
memory, the copy would.

Refused: growth beyond the limit; random ops; DequantizeLinear and QuantizeLinear (they carry the quantisation);
Loop and Scan (`rewrites/control/unroll.py` has those of few steps); initializers that are graph inputs (a caller may
override them); types that numpy cannot compute in.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op, is_used, remove, replace, taken_initializers
from tilegraph.rewrites.normalise.evaluate import CannotEvaluate, evaluable, evaluate
from tilegraph.rewrites.normalise.infer.info import shape_of, static_sizes
from tilegraph.rewrites.normalise.shapes import Shapes, known_contents, known_integer

GROWTH_KEY = "tilegraph.fold_growth"  # bytes added so far, kept with the model: several runs share one limit
_NODE_RECORD = 128  # bytes of a serialized node, roughly; a constant of this size adds nothing when it replaces one
_ROUNDS = 16


class Fold(Pass):
    """Folds, infers shapes again with what has become known, and so on until nothing is left to fold."""

    name = "fold"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for _ in range(_ROUNDS):
            # Refusals of a round that folded something are said again by the next, if they still hold.
            round_context = PassContext(fold_limit_bytes=context.fold_limit_bytes)
            changed = _Folder(model, round_context, self.name).graph(model.graph)
            if changed:
                modified = True
                Shapes().run(model, round_context)
            for decision in round_context.diagnostics:
                if decision.taken and decision.stage == self.name:
                    context.diagnostics.took(self.name, decision.subject, decision.reason, op=decision.op)
                elif not decision.taken and not changed:
                    context.diagnostics.refused(self.name, decision.subject, decision.reason, op=decision.op)
            if not changed:
                break
        return PassResult(modified)


class _Folder:
    def __init__(self, model: ir.Model, context: PassContext, stage: str) -> None:
        self.model = model
        self.context = context
        self.stage = stage
        self.opset = model.graph.opset_imports.get("", 1)
        self.names = Names(model)

    def graph(self, graph: ir.Graph) -> bool:
        modified = False
        pending = list(graph)
        pending.reverse()
        while pending:
            node = pending.pop()
            if not any(is_used(o) for o in node.outputs):
                continue  # dead code is another pass's
            moved = self.decided_branch(node)
            if moved is not None:
                pending += reversed(moved)
                modified = True
                continue
            modified |= self.node(node)
            if node.graph is not None:
                for inner in subgraphs_of(node):
                    modified |= self.graph(inner)
        return modified

    def node(self, node: ir.Node) -> bool:
        used = [o for o in node.outputs if is_used(o)]
        if is_op(node, "Constant") or (is_op(node, "Identity") and all(o.is_graph_output() for o in used)):
            return False
        known = [known_contents(o) for o in used]
        if any(k is None for k in known):
            known = self.computed(node, used)
        if not known:
            return False
        arrays = [k for k in known if k is not None]
        freed, mapped = self.freed_by(node)
        size = sum(a.nbytes for a in arrays)
        added = size - freed - _NODE_RECORD
        total: int = self.model.graph.meta.get(GROWTH_KEY, 0) + added
        limit = self.context.fold_limit_bytes
        if added > 0 and (total > limit or (mapped and size > limit)):
            self.refuse(node, f"would add {added} bytes, beyond the limit of {limit} for the model")
            return False
        self.model.graph.meta[GROWTH_KEY] = max(total, 0)
        for output, array in zip(used, arrays, strict=True):
            assert output.dtype is not None
            assert node.graph is not None
            tensor = ir.Tensor(np.asarray(array, order="C"), dtype=output.dtype)
            name = self.names.value(f"{output.name}_folded")
            value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(output.dtype),
                             const_value=tensor)
            tensor.name = name
            node.graph.register_initializer(value)
            replace(output, value, self.model.graph)
        remove(node)
        return True

    def computed(self, node: ir.Node, used: list[ir.Value]) -> list[npt.NDArray[Any] | None]:
        """The used outputs, or [] when they are not constant or not to be computed."""
        if not evaluable(node) or any(o.dtype in (None, ir.DataType.STRING) for o in used):
            return []  # how numbers are written out is ONNX Runtime's
        tensors = [constant_of(v) for v in node.inputs]
        if node.op_type == "CastLike" and tensors[0] is not None and used[0].dtype is not None:
            # Only the type of the other operand matters, and that is the output's.
            like = np.zeros((), used[0].dtype.numpy())
            return self.evaluated(node, [tensors[0].numpy(), like], [tensors[0].dtype, used[0].dtype], used)
        if any(t is None and v is not None for t, v in zip(tensors, node.inputs, strict=True)):
            return []
        if any(t is not None and t.dtype == ir.DataType.STRING for t in tensors):
            return []
        limit = self.context.fold_limit_bytes
        if _least_size(used) > limit + self.freed_by(node)[0]:
            self.refuse(node, f"its result exceeds the limit of {limit} bytes")
            return []
        arrays = [None if t is None else t.numpy() for t in tensors]
        return self.evaluated(node, arrays, [None if t is None else t.dtype for t in tensors], used)

    def evaluated(self, node: ir.Node, arrays: list[npt.NDArray[Any] | None], dtypes: list[ir.DataType | None],
                  used: list[ir.Value]) -> list[npt.NDArray[Any] | None]:
        try:
            results = evaluate(node, arrays, dtypes, self.opset)
        except CannotEvaluate as reason:
            self.refuse(node, str(reason))
            return []
        chosen = [r for o, r in zip(node.outputs, results, strict=False) if is_used(o)]
        if len(chosen) != len(used) or any(
            o.dtype is None or r.dtype != o.dtype.numpy() for o, r in zip(used, chosen, strict=True)
        ):
            self.refuse(node, "its result has another type than the model says")
            return []
        return list(chosen)

    def freed_by(self, node: ir.Node) -> tuple[int, bool]:
        """Bytes of the constants that only `node` uses, memory-mapped ones not counted; and whether there are such."""
        freed, mapped = 0, False
        for value in set(node.inputs):
            tensor = constant_of(value)
            if value is None or tensor is None or value.is_graph_output():
                continue
            if any(user is not node for user, _ in value.uses()):
                continue
            if isinstance(tensor, ir.ExternalTensor):
                mapped = True
            else:
                freed += tensor.nbytes
        return freed, mapped

    def refuse(self, node: ir.Node, reason: str) -> None:
        self.context.diagnostics.refused(self.stage, node.name or "", f"not folded: {reason}", op=node.op_type)

    def decided_branch(self, node: ir.Node) -> list[ir.Node] | None:
        """Moves the taken branch of an If with a known condition before it and removes the If; None otherwise."""
        if not is_op(node, "If") or not node.inputs or node.inputs[0] is None or node.graph is None:
            return None
        condition = known_integer(node.inputs[0])
        if condition is None:
            return None
        name = "then_branch" if condition else "else_branch"
        self.context.diagnostics.took(self.stage, node.name or "", f"condition is constant: {name} taken", op="If")
        return take_branch(node, name, self.model.graph)


def take_branch(node: ir.Node, name: str, root: ir.Graph) -> list[ir.Node]:
    """Moves the branch `name` of the If `node` before it and removes the If; returns the nodes that moved."""
    branch, graph = node.attributes[name].as_graph(), node.graph
    assert graph is not None
    for value in taken_initializers(branch):
        graph.register_initializer(value)
    outputs, nodes = list(branch.outputs), list(branch)
    branch.outputs.clear()
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        if is_used(old):
            replace(old, new, root)
    remove(node)
    return nodes


def _least_size(values: list[ir.Value]) -> int:
    """Bytes of the outputs as far as shapes say, to refuse before computing."""
    total = 0
    for value in values:
        sizes = static_sizes(shape_of(value.shape))
        if sizes is not None and value.dtype is not None:
            total += int(math.prod(sizes) * value.dtype.itemsize)
    return total
