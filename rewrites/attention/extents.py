"""Extents around the scores that would keep an attention from being taken, though valid runs have them right.

- A mask that is cut from a table, `mask[:, :, :n, :n]`, has min(table, n) rows. Where it is broadcast against n, runs
  beyond the table fail in ONNX Runtime too (but for a single row of it): the mask is declared to have n, which the EP
  checks on every run.
- A mask whose extents have names of their own, `total` for `past+1`, is expanded to the scores' before it meets them:
  ONNX Runtime does so in a run too, and where its extent is neither 1 nor the scores', that run fails.
- Shapes that are read off the scores, to expand a mask to them, are put together from those of the first product's
  operands and of the graph's inputs.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.rewrites.attention.find import Core
from tilegraph.rewrites.normalise.edit import Names
from tilegraph.rewrites.normalise.infer.info import shape_of, to_ir_shape
from tilegraph.spec.dims import Dim, Opaque

_WAY = 48  # nodes that put a mask together
Place = int | tuple[ir.Value, int]  # where a size is from: itself, or an axis of a value


def settle(core: Core) -> bool:
    """Declares the extents of masks that are cut from tables; whether there was one."""
    changed = False
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
                changed = True
    return changed


def _is_cut(have: Dim, want: Dim) -> bool:
    """Whether `have` is `want`, but for a limit of at least 2; or one row or none, where `want` is 1."""
    if have == want:
        return True
    atom = _atom(have)
    if atom is None or (want.is_static and want != 1):
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


def expand(core: Core, graph: ir.Graph, names: Names) -> bool:
    """Expands masks of which only a run knows whether they have the scores' extents or 1."""
    if graph is not core.first.graph:
        return False
    sources = [v for v in core.first.inputs if v is not None]
    made = {core.first.outputs[0]}
    changed = False
    for node in [n for n in graph if n in core.between or n is core.second]:
        scores = next((shape for v in node.inputs if v in made and (shape := _whole(v)) is not None), None)
        if scores is not None and kind_of(node) == "pointwise":
            widener = _Widener(scores, sources, made, graph, names)
            for index in range(len(node.inputs)):
                changed |= widener.widen(node, index)
        if changed and scores is not None:
            _complete(node, scores, made)
        made.update(node.outputs)
    return changed


class _Widener:
    """Expands what is broadcast against scores of shape `scores`, on the way from where masks are put together too:
    one of `past+1` and one of `total` are added up before they meet the scores."""

    def __init__(self, scores: tuple[Dim, ...], sources: list[ir.Value], made: set[ir.Value], graph: ir.Graph,
                 names: Names) -> None:
        self.scores = scores
        self.sources = sources
        self.made = made
        self.graph = graph
        self.names = names
        self.seen: set[ir.Node] = set()

    def widen(self, node: ir.Node, index: int) -> bool:
        """Expands operand `index` of `node`, or operands of the pointwise nodes that make it; whether there was one."""
        value = node.inputs[index]
        if value is None or value in self.made:
            return False
        changed = self._upstream(value)
        target = _target(value, self.scores)
        places = None if target is None else [_place(dim, self.sources) for dim in target]
        if target is None or not places or None in places:
            return changed
        self._expand(node, index, target, [p for p in places if p is not None])
        return True

    def _upstream(self, value: ir.Value) -> bool:
        """The same for the operands of the node that makes `value`, where they do not fit each other for certain."""
        maker = value.producer()
        if maker is None or maker in self.seen or maker.graph is not self.graph or kind_of(maker) != "pointwise" \
                or len(self.seen) >= _WAY or self._is_before(maker):
            return False
        self.seen.add(maker)
        if _joined(maker) is not None:
            inner = [self._upstream(v) for v in maker.inputs if v is not None]
            return any(inner)
        widened = [self.widen(maker, k) for k in range(len(maker.inputs))]
        if not any(widened):
            return False
        shape = _joined(maker)
        if shape is not None:
            value.shape = to_ir_shape(shape)
        self.graph.sort()  # what has the sizes may come later
        return True

    def _expand(self, node: ir.Node, index: int, target: tuple[Dim, ...], places: list[Place]) -> None:
        value = node.inputs[index]
        assert value is not None
        size = _put_together(node, places, self.graph, self.names)
        wide = ir.node("Expand", [value, size], name=self.names.node(f"{value.name}_expand"))
        wide.outputs[0].name = self.names.value(f"{value.name}_expanded")
        wide.outputs[0].type, wide.outputs[0].shape = value.type, to_ir_shape(target)
        self.graph.insert_before(node, [wide])
        node.replace_input_with(index, wide.outputs[0])

    def _is_before(self, maker: ir.Node) -> bool:
        """Whether what has the sizes is made of what `maker` makes."""
        reached: set[ir.Node] = set()
        stack = [v.producer() for v in self.sources]
        while stack:
            node = stack.pop()
            if node is maker:
                return True
            if node is not None and node not in reached:
                reached.add(node)
                stack.extend(v.producer() for v in node.inputs if v is not None)
        return False


def _joined(node: ir.Node) -> tuple[Dim, ...] | None:
    """The shape to which the operands of `node` broadcast for certain."""
    shapes = [_whole(v) for v in node.inputs if v is not None]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    dims = [{shape[k - rank + len(shape)] for shape in known if k >= rank - len(shape)} - {Dim.of(1)}
            for k in range(rank)]
    return tuple(next(iter(d), Dim.of(1)) for d in dims) if all(len(d) < 2 for d in dims) else None


def _whole(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """The shape, None where a dim is unknown."""
    shape = None if value is None else shape_of(value.shape)
    known = () if shape is None else tuple(d for d in shape if d is not None)
    return known if shape is not None and len(known) == len(shape) else None


def _target(value: ir.Value, scores: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """What `value` must be expanded to; None where it broadcasts for certain, or is of a constant size or larger."""
    shape = _whole(value)
    if shape is None or value.const_value is not None or len(shape) > len(scores) or len(scores) < 3:
        return None
    against = scores[len(scores) - len(shape):]
    unknown = [have != want and have != 1 and want != 1 for have, want in zip(shape, against, strict=True)]
    if not any(unknown) or any(have.is_static for have, open_ in zip(shape, unknown, strict=True) if open_):
        return None
    return tuple(want if open_ else have for have, want, open_ in zip(shape, against, unknown, strict=True))


def _complete(node: ir.Node, scores: tuple[Dim, ...], made: set[ir.Value]) -> None:
    """Dims of results that shape inference did not know, now that all operands broadcast for certain."""
    for output in node.outputs:
        shape = shape_of(output.shape)
        if shape is None or None not in shape or len(shape) != len(scores):
            continue
        full = scores if node.op_type != "MatMul" else (*scores[:-1], shape[-1])
        if node.op_type != "MatMul" or node.inputs[0] in made:
            output.shape = to_ir_shape(tuple(f if d is None else d for d, f in zip(shape, full, strict=True)))


def read_elsewhere(core: Core, graph: ir.Graph, names: Names) -> bool:
    """Puts shapes that are read off scores and weights together from what the first product and the graph read."""
    sources = [v for v in (*core.first.inputs, *graph.inputs) if v is not None]
    readers = [use.node for node in core.between | {core.first} for value in node.outputs for use in value.uses()
               if (domain_of(use.node), use.node.op_type) == ("", "Shape") and use.node.graph is graph
               and not use.node.outputs[0].is_graph_output()]
    changed = False
    for reader in readers:
        dims = _read(reader)
        places = None if dims is None else [_place(dim, sources) for dim in dims]
        if places and None not in places:
            _replace(reader, [p for p in places if p is not None], graph, names)
            changed = True
    return changed


def _read(reader: ir.Node) -> tuple[Dim, ...] | None:
    """The dims that a Shape gives, None where one is not known."""
    value = reader.inputs[0]
    shape = None if value is None else shape_of(value.shape)
    if shape is None:
        return None
    start, end = (reader.attributes.get(name) for name in ("start", "end"))
    dims = shape[None if start is None else start.as_int():None if end is None else end.as_int()]
    known = tuple(d for d in dims if d is not None)
    return known if len(known) == len(dims) else None


def _place(dim: Dim, sources: list[ir.Value]) -> Place | None:
    """The size itself, or a value and its axis that have it."""
    size = dim.as_int()
    if size is not None:
        return size
    for value in sources:
        shape = shape_of(value.shape)
        if shape is not None and dim in shape:
            return value, shape.index(dim)
    return None


def _replace(reader: ir.Node, places: list[Place], graph: ir.Graph, names: Names) -> None:
    old = reader.outputs[0]
    whole = _put_together(reader, places, graph, names)
    if len(places) > 1:
        whole.meta.update(old.meta)
    old.replace_all_uses_with(whole)
    graph.remove(reader, safe=True)


def _put_together(before: ir.Node, places: list[Place], graph: ir.Graph, names: Names) -> ir.Value:
    """A list of sizes, made by nodes in front of `before`."""
    nodes: list[ir.Node] = []
    shapes: dict[ir.Value, ir.Value] = {}

    def constant(number: int) -> ir.Value:
        name = names.value(f"{before.name}_at")
        tensor = ir.tensor(np.array([number], np.int64), name=name)
        value = ir.Value(name=name, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
        graph.register_initializer(value)
        return value

    def add(op: str, *inputs: ir.Value, size: int, **attributes: int) -> ir.Value:
        node = ir.node(op, list(inputs), attributes=attributes, name=names.node(f"{before.name}_{op}"))
        node.outputs[0].name = names.value(f"{before.name}_{op}_size")
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([size])
        nodes.append(node)
        return node.outputs[0]

    parts: list[ir.Value] = []
    for place in places:
        if isinstance(place, int):
            parts.append(constant(place))
            continue
        source, axis = place
        if source not in shapes:
            assert source.shape is not None
            shapes[source] = add("Shape", source, size=len(source.shape))
        parts.append(add("Gather", shapes[source], constant(axis), size=1, axis=0))
    whole = parts[0] if len(parts) == 1 else add("Concat", *parts, size=len(parts), axis=0)
    graph.insert_before(before, nodes)
    return whole
