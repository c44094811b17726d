"""A one-hot matrix times a table becomes a look-up in the table.

    Cast(Equal(x, [0 ... n-1])) @ W          =  row x of W, or zeros where x is outside
    OneHot(x, n, [0, 1]) @ W                 =  the same; there x may count from the end, -n ... -1

because the product adds one row times 1 and the others times 0, which is exact for finite W. Gather must not see an
index that is outside, so the table gets rows of zeros and x is clipped onto them: with T = [W; 0], x in -1 ... n
(Gather counts -1 from the end), and for OneHot T = [W; 0; 0; W], x in -n-1 ... n. A constant row that is added
afterwards goes into the table: the same sum, rounded the same way.

Handles: int32 and int64 x; the positions as an initializer [n] or [1, ..., 1, n]; either order of Equal; tables that
are constant matrices of float32 or float64; Add of a scalar or a row on either side. Needs opset 12 (Clip of integers).

Refused: a one-hot that something else reads; positions that are not 0 ... n-1; tables with an infinity or NaN; OneHot
with other values, along another axis, or with a depth that is not the table's; growth beyond the limit on folding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import affine_of, only_reader, per_channel
from tilegraph.rewrites.algebra.constants import FLOATS, Array, Constants, fits, floats
from tilegraph.rewrites.normalise.edit import constant_of, is_op, remove, replace
from tilegraph.rewrites.normalise.infer.info import shape_of

_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
_OPSET = 12


@dataclass(frozen=True)
class _OneHot:
    """`nodes` in order make it; `squeeze`: the indices have an extra last axis of 1; `wraps`: they may be negative."""

    nodes: tuple[ir.Node, ...]
    indices: ir.Value
    depth: int
    squeeze: bool
    wraps: bool


class OneHotGather(Pass):
    name = "one-hot"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        if model.graph.opset_imports.get("", 1) < _OPSET:
            return PassResult(False)
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                if not is_op(node, "MatMul") or node.outputs[0].dtype not in FLOATS:
                    continue
                found = _one_hot(node)
                if found is None:
                    continue
                reason = _rewrite(node, found, constants)
                if reason is None:
                    context.diagnostics.took(self.name, node.name or "", "looks rows up instead", op="MatMul",
                                             nodes=[n.name for n in found.nodes])
                    modified = True
                else:
                    context.diagnostics.refused(self.name, node.name or "", reason, op="MatMul")
        return PassResult(modified)


def _one_hot(matmul: ir.Node) -> _OneHot | None:
    value = matmul.inputs[0]
    node = None if value is None else value.producer()
    if value is None or node is None or only_reader(value, matmul.graph) is not matmul:
        return None
    if is_op(node, "OneHot"):
        return _one_hot_op(node)
    if not is_op(node, "Cast") or node.inputs[0] is None:
        return None
    equal = node.inputs[0].producer()
    if equal is None or not is_op(equal, "Equal") or only_reader(node.inputs[0], node.graph) is not node:
        return None
    for left in (0, 1):
        indices, positions = equal.inputs[left], equal.inputs[1 - left]
        tensor = constant_of(positions)
        dims = None if indices is None else shape_of(indices.shape)
        if tensor is None or indices is None or dims is None or indices.dtype not in _INDICES:
            continue
        array = tensor.numpy()
        if not dims or dims[-1] is None or dims[-1].as_int() != 1 or array.ndim == 0 or array.ndim > len(dims):
            continue
        depth = array.shape[-1]
        if array.size == depth and np.array_equal(array.reshape(-1), np.arange(depth)):
            return _OneHot((equal, node), indices, depth, True, False)
    return None


def _one_hot_op(node: ir.Node) -> _OneHot | None:
    indices, depth, values = node.inputs[0], constant_of(node.inputs[1]), constant_of(node.inputs[2])
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    if indices is None or indices.dtype not in _INDICES or depth is None or values is None or depth.size != 1:
        return None
    if axis != -1 and axis != (rank or 0) - 1:
        return None
    if not np.array_equal(values.numpy().reshape(-1), [0, 1]):
        return None
    return _OneHot((node,), indices, int(depth.numpy().reshape(())), False, True)


def _rewrite(matmul: ir.Node, found: _OneHot, constants: Constants) -> str | None:
    table, old = floats(matmul.inputs[1]), matmul.inputs[1]
    dtype = matmul.outputs[0].dtype
    if table is None or old is None or dtype is None or table.ndim != 2 or table.shape[0] != found.depth:
        return "its table is not a constant matrix with a row for each position"
    if not np.isfinite(table).all():
        return "its table has an infinity or NaN, which times 0 is not 0"
    width = table.shape[1]
    none = np.zeros((1, width))
    rows = np.concatenate([table, none, none, table] if found.wraps else [table, none])
    add, shift = _added(matmul, width)
    if add is not None:
        rows = rows + shift
        if not fits(rows, dtype):
            add, rows = None, rows - shift
    reason = constants.refusal(matmul, old, int(rows.size * dtype.itemsize))
    if reason:
        return reason
    last = add or matmul
    gather = _lookup(matmul, found, rows, dtype, constants)
    last.append(gather)
    replace(last.outputs[0], gather[-1].outputs[0], constants.model.graph)
    for gone in ([add] if add is not None else []) + [matmul, *reversed(found.nodes)]:
        remove(gone)
    return None


def _added(matmul: ir.Node, width: int) -> tuple[ir.Node | None, Array]:
    """The Add of a constant row that is the only reader of the product, and the row."""
    result = matmul.outputs[0]
    node = only_reader(result, matmul.graph)
    step = None if node is None else affine_of(node, norms=False)
    if node is None or step is None or not is_op(node, "Add") or result.shape is None:
        return None, np.zeros(())
    row = per_channel(step.shift, len(result.shape), len(result.shape) - 1, width)
    return (None, np.zeros(())) if row is None else (node, row)


def _lookup(matmul: ir.Node, found: _OneHot, rows: Array, dtype: ir.DataType, constants: Constants) -> list[ir.Node]:
    """The nodes of the look-up, not yet in the graph; the last one gives the rows."""
    base, kind = matmul.name, found.indices.dtype
    result = matmul.outputs[0]
    assert kind is not None
    assert result.shape is not None
    nodes: list[ir.Node] = []
    shape = ir.Shape(list(result.shape)[:-1])

    def make(op: str, inputs: list[ir.Value], value_type: ir.DataType, value_shape: ir.Shape) -> ir.Value:
        node = ir.node(op, inputs, name=constants.names.node(f"{base}_{op.lower()}"))
        output = node.outputs[0]
        output.name = constants.names.value(f"{result.name}_{op.lower()}")
        output.type, output.shape = ir.TensorType(value_type), value_shape
        nodes.append(node)
        return output

    index = found.indices
    if found.squeeze:
        target = np.zeros(len(shape), np.int64)  # every extent but the last as it is
        index = make("Reshape", [index, constants.make(f"{base}_target", target, ir.DataType.INT64)], kind,
                     shape)
    low = constants.make(f"{base}_low", np.asarray(-found.depth - 1 if found.wraps else -1), kind)
    high = constants.make(f"{base}_high", np.asarray(found.depth), kind)
    index = make("Clip", [index, low, high], kind, shape)
    table = constants.make(f"{base}_table", rows, dtype)
    make("Gather", [table, index], dtype, result.shape)
    return nodes
