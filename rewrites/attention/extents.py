"""Extents around the scores that would keep an attention from being taken, though valid runs have them right.

- A mask that is cut from a table, `mask[:, :, :n, :n]`, has min(table, n) rows. Where it is broadcast against n, runs
  beyond the table fail in ONNX Runtime too (but for a single row of it): the mask is declared to have n, which the EP
  checks on every run.
- Shapes that are read off the scores, to expand a mask to them, are put together from those of queries and keys.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.rewrites.attention.find import Core
from tilegraph.rewrites.normalise.edit import Names
from tilegraph.rewrites.normalise.infer.info import shape_of, to_ir_shape
from tilegraph.spec.dims import Dim, Opaque


def settle(core: Core) -> None:
    """Declares the extents of masks that are cut from tables."""
    made = {v for n in core.nodes for v in n.outputs}
    for node in core.between:
        target = shape_of(node.outputs[0].shape)
        if kind_of(node) != "pointwise" or target is None:
            continue
        for value in node.inputs:
            shape = None if value is None or value in made or value.is_graph_input() else shape_of(value.shape)
            if value is None or shape is None or value.const_value is not None or len(shape) > len(target):
                continue
            against = target[len(target) - len(shape):]
            settled = tuple(want if have is not None and want is not None and _is_cut(have, want) else have
                            for have, want in zip(shape, against, strict=True))
            if settled != shape:
                value.shape = to_ir_shape(settled)


def _is_cut(have: Dim, want: Dim) -> bool:
    """Whether `have` is `want`, but for a limit of at least 2."""
    if have == want:
        return True
    atom = _atom(have)
    if atom is None or want.is_static:
        return False
    if atom.op == "max":
        rest = [a for a in atom.args if a != 0]
        return len(rest) == 1 and len(atom.args) == 2 and _is_cut(rest[0], want)
    return atom.op == "min" and any(a == want for a in atom.args)


def _atom(dim: Dim) -> Opaque | None:
    """The one atom that `dim` is."""
    terms = list(dim.terms)
    if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1:
        return None
    atom = terms[0][0][0]
    return atom if isinstance(atom, Opaque) else None


def read_elsewhere(core: Core, graph: ir.Graph, names: Names) -> bool:
    """Puts shapes that are read off scores and weights together from those of the operands of the first product."""
    if len(core.first.inputs) != 2:  # an Einsum of another number of operands
        return False
    q, k = core.first.inputs
    scores, rows = shape_of(core.first.outputs[0].shape), None if q is None else shape_of(q.shape)
    if q is None or k is None or scores is None or rows is None or core.first.op_type != "MatMul" \
            or len(rows) != len(scores) or rows[:-1] != scores[:-1] or None in rows[:-1]:
        return False
    readers = []
    for node in core.between | {core.first}:
        for value in node.outputs:
            if shape_of(value.shape) == scores:
                readers += [use.node for use in value.uses() if (domain_of(use.node), use.node.op_type) == ("", "Shape")
                            and not use.node.attributes and not use.node.outputs[0].is_graph_output()]
    for reader in readers:
        _replace(reader, q, k, graph, names)
    return bool(readers)


def _replace(reader: ir.Node, q: ir.Value, k: ir.Value, graph: ir.Graph, names: Names) -> None:
    def constant(number: int) -> ir.Value:
        name = names.value(f"{reader.name}_at")
        tensor = ir.tensor(np.array([number], np.int64), name=name)
        value = ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
        graph.register_initializer(value)
        return value

    old = reader.outputs[0]
    nodes: list[ir.Node] = []

    def add(op: str, *inputs: ir.Value, size: int, **attributes: int) -> ir.Value:
        node = ir.node(op, list(inputs), attributes=attributes, name=names.node(f"{reader.name}_{op}"))
        node.outputs[0].name = names.value(f"{old.name}_{op}")
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([size])
        nodes.append(node)
        return node.outputs[0]

    assert q.shape is not None
    assert k.shape is not None
    rank, inner = len(q.shape), len(k.shape)
    rows = add("Slice", add("Shape", q, size=rank), constant(0), constant(rank - 1), constant(0), size=rank - 1)
    columns = add("Slice", add("Shape", k, size=inner), constant(inner - 1), constant(inner), constant(0), size=1)
    whole = add("Concat", rows, columns, size=rank, axis=0)
    whole.meta.update(old.meta)
    graph.insert_before(reader, nodes)
    old.replace_all_uses_with(whole)
    graph.remove(reader, safe=True)
