"""Rows are looked up before a table is computed, not after.

    Gather(Cast(q) * s, i)  =  Cast(Gather(q, i)) * Gather(s, i)

Embeddings that are stored as integers are computed on every run as soon as they are too large to be folded. The same
operations on the same elements: exact, and where an index is outside both forms fail.

Handles: Cast, Mul, Add, Sub, Div, and DequantizeLinear with one scale, scales of the last axis, or blocks of it, of
constants of any dtype; Gather along axis 0 with indices of any shape but a scalar; several Gathers of one table.

Refused: as many indices as rows, or more, for certain; DequantizeLinear with a scale for each row, which no rank but
the table's can spell; tables that depend on graph inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op, is_used, remove, replace

_POINTWISE = ("Cast", "Mul", "Add", "Sub", "Div", "DequantizeLinear")


class GatherEarly(Pass):
    name = "gather-early"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        names = Names(model)
        for graph in list(all_graphs(model)):
            pending = [node for node in graph if is_op(node, "Gather")]
            while pending:
                gather = pending.pop()
                made = _sink(gather, names, model.graph)
                if made is not None:
                    context.diagnostics.took(self.name, gather.name or "", "rows are looked up first", op="Gather")
                    modified = True
                    pending += made
        return PassResult(modified)


def _sink(gather: ir.Node, names: Names, root: ir.Graph) -> list[ir.Node] | None:
    """Moves `gather` above the node that makes its table; the new Gathers, or None if it stays."""
    table, indices = gather.inputs[0], gather.inputs[1]
    node = None if table is None else table.producer()
    if table is None or indices is None or node is None or not _computed(table) or table.shape is None:
        return None
    if "axis" in gather.attributes and gather.attributes["axis"].as_int() not in (0, -len(table.shape)):
        return None
    if indices.shape is None or not len(indices.shape) or not _fewer(indices.shape, table.shape):
        return None
    looked_up = _looked_up(node, table.shape)
    if looked_up is None:
        return None
    made: list[ir.Node] = []
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        if value is None or index not in looked_up:
            inputs.append(value)
            continue
        one = ir.node("Gather", [value, indices], name=names.node(f"{gather.name}_{index}"))
        _describe(one.outputs[0], names.value(f"{gather.outputs[0].name}_{index}"), value, indices)
        made.append(one)
        inputs.append(one.outputs[0])
    attributes = [ir.Attr(a.name, a.type, a.value) for a in node.attributes.values()]
    scale = node.inputs[1] if is_op(node, "DequantizeLinear") else None
    if scale is not None and scale.shape is not None and len(scale.shape):
        attributes = [*(a for a in attributes if a.name != "axis"), ir.AttrInt64("axis", -1)]
    last = ir.Node("", node.op_type, inputs, attributes, num_outputs=1, version=node.version,
                   name=names.node(f"{gather.name}_{node.op_type.lower()}"))
    old = gather.outputs[0]
    last.outputs[0].name = names.value(f"{old.name}_{node.op_type.lower()}")
    last.outputs[0].type, last.outputs[0].shape = old.type, old.shape
    gather.append([*made, last])
    replace(old, last.outputs[0], root)
    remove(gather)
    _clean(node)
    return made


def _computed(value: ir.Value) -> bool:
    """Whether `value` is made of constants by the operators above, and read by nodes only."""
    node = value.producer()
    if node is None or not is_op(node, *_POINTWISE) or value.is_graph_output():
        return False
    return all(v is None or constant_of(v) is not None or _computed(v) for v in node.inputs)


def _fewer(indices: ir.Shape, table: ir.Shape) -> bool:
    count = 1
    for extent in indices:
        if not isinstance(extent, int):
            return True
        count *= extent
    return not len(table) or not isinstance(table[0], int) or count < table[0]


def _looked_up(node: ir.Node, table: ir.Shape) -> set[int] | None:
    """The inputs of `node` with a row for each row of the table; None where an input does not fit."""
    found: set[int] = set()
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if value.shape is None:
            return None
        extents = list(value.shape)
        if is_op(node, "DequantizeLinear") and index > 0 and len(extents) == 1 and extents != [1]:
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
            if axis % len(table) in (0, *range(1, len(table) - 1)):
                return None  # not the last axis, to which -1 could point
        elif len(extents) == len(table) and extents[0] == table[0]:
            if is_op(node, "DequantizeLinear") and index > 0 and _axis(node, len(table)) != len(table) - 1:
                return None
            found.add(index)
        elif len(extents) == len(table) and extents[0] != 1:
            return None
    return found if 0 in found or (found and not is_op(node, "Cast", "DequantizeLinear")) else None


def _axis(node: ir.Node, rank: int) -> int:
    return (node.attributes["axis"].as_int() if "axis" in node.attributes else 1) % rank


def _describe(made: ir.Value, name: str, source: ir.Value, indices: ir.Value) -> None:
    assert source.shape is not None
    assert indices.shape is not None
    made.name, made.type = name, source.type
    made.shape = ir.Shape([*indices.shape, *list(source.shape)[1:]])


def _clean(node: ir.Node) -> None:
    """Takes out the computation of a table that nothing reads any more."""
    if any(is_used(o) for o in node.outputs):
        return
    above = list(_producers(node))
    remove(node)
    for one in above:
        _clean(one)


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    for one in dict.fromkeys(v.producer() for v in node.inputs if v is not None):
        if one is not None and not is_op(one, "Constant"):
            yield one
