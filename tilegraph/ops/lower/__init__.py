"""From nodes to prims: `lower_region` turns the nodes of a region into the DAG that kernels are made from.

Rules live in views, reductions and generators; every other operator is pointwise and comes from the operator table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from tilegraph.ops.dtypes import stored_name
from tilegraph.ops.lower.base import NodeContext, compute_dtype, constant_of, point, shape_of
from tilegraph.ops.lower.casts import lower_cast
from tilegraph.ops.lower.generators import GENERATORS
from tilegraph.ops.lower.reductions import REDUCTIONS
from tilegraph.ops.lower.views import VIEWS
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.ops.prims import Const, Decline, Input, Lowered, Prim

Rule = Callable[[NodeContext], list[Prim]]


def domain_of(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def kind_of(node: ir.Node) -> str | None:
    """"view", "reduction", "generator" or "pointwise"; None for operators that regions do not take."""
    key = (domain_of(node), node.op_type)
    if key[0] == "" and key[1] in VIEWS:
        return "view"
    if key in REDUCTIONS:
        return "reduction"
    if key in GENERATORS:
        return "generator"
    return "pointwise" if key in POINTWISE else None


def _rule(node: ir.Node) -> Rule:
    key = (domain_of(node), node.op_type)
    if key[0] == "" and key[1] in VIEWS:
        return VIEWS[key[1]]
    if key in REDUCTIONS:
        return REDUCTIONS[key]
    if key in GENERATORS:
        return GENERATORS[key]
    if key == ("", "Cast") or key == ("", "CastLike"):
        return lower_cast
    if key in POINTWISE:
        return _pointwise
    raise Decline(f"{node.op_type} is not an operator that regions take", node.name or "")


def _pointwise(c: NodeContext) -> list[Prim]:
    operands = [c.optional(i) for i in range(len(c.node.inputs))]
    for i, value in enumerate(c.node.inputs):
        if value is not None:
            c.arg(i)
    dtype = compute_dtype(c.node.outputs[0])
    return [point(c.node.op_type, operands, dtype, domain=domain_of(c.node), attrs=c.attrs(), opset=c.opset)]


class _Operands(list[Prim | None]):
    """Operands whose lowering failed keep their reason until a rule asks for them."""

    def __init__(self, items: Sequence[Prim | Decline | None]) -> None:
        super().__init__([None if isinstance(p, Decline) else p for p in items])
        self.reasons = {i: p for i, p in enumerate(items) if isinstance(p, Decline)}


class _Context(NodeContext):
    def __init__(self, node: ir.Node, args: _Operands, opset: int) -> None:
        super().__init__(node, args, opset)
        self._reasons = args.reasons

    def arg(self, i: int) -> Prim:
        if i in self._reasons:
            raise self._reasons[i]
        return super().arg(i)


def lower_region(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int]) -> Lowered:
    """Lowers `nodes` (in topological order) to one prim per value of `outputs`.

    Raises `Decline` with the node and the reason. Scalar constants become part of the computation; every other outside
    value becomes an input, in the order of first use by what the outputs need.
    """
    prims: dict[ir.Value, Prim | Decline] = {}
    slots: list[ir.Value] = []

    def operand(value: ir.Value | None) -> Prim | Decline | None:
        if value is None:
            return None
        if value not in prims:
            try:
                prims[value] = _outside(value, slots)
            except Decline as reason:
                prims[value] = reason
        return prims[value]

    for node in nodes:
        if node.op_type == "Constant" and domain_of(node) == "":
            continue  # read through constant_of by whoever uses it
        context = _Context(node, _Operands([operand(v) for v in node.inputs]), opsets.get(domain_of(node), 1))
        try:
            results = _rule(node)(context)
        except Decline as reason:
            raise Decline(reason.reason, reason.node or node.name or "") from None
        for value, prim in zip(node.outputs, results, strict=False):
            _check(value, prim, node)
            prims[value] = prim
    found = [prims[v] for v in outputs]
    results_: list[Prim] = []
    for p in found:
        if isinstance(p, Decline):
            raise p
        results_.append(p)
    return _renumber(tuple(results_), tuple(stored_name(v.dtype, v.name or "") for v in outputs), slots)


def _outside(value: ir.Value, slots: list[ir.Value]) -> Prim:
    stored = stored_name(value.dtype, value.name or "")
    shape = shape_of(value)
    if all(d == 1 for d in shape):
        array = constant_of(value)
        if array is not None:
            return Const(shape, compute_dtype(value), value=array.reshape(-1)[0].item())
    if any(d == 0 for d in shape):
        raise Decline(f"{value.name} is empty", value.name or "")
    slots.append(value)
    return Input(shape, compute_dtype(value), slot=len(slots) - 1, stored=stored)


def _check(value: ir.Value, prim: Prim, node: ir.Node) -> None:
    """The lowered shape and dtype must be those that shape inference found, where it found any."""
    if value.dtype is not None and stored_name(value.dtype, value.name or "") and compute_dtype(value) != prim.dtype:
        raise Decline(f"{node.op_type} gives {prim.dtype}, but {value.name} is {value.dtype.name}", node.name or "")
    if any(d == 0 for d in prim.shape):
        raise Decline(f"{value.name} is empty", node.name or "")
    if value.shape is not None and len(value.shape) != len(prim.shape):
        raise Decline(f"{value.name} has rank {len(value.shape)}, its lowering {len(prim.shape)}", node.name or "")


def _renumber(outputs: tuple[Prim, ...], stored: tuple[str, ...], slots: list[ir.Value]) -> Lowered:
    """Keeps only the inputs that the outputs read, in order of their first slot."""
    used: set[int] = set()
    seen: set[int] = set()
    stack: list[Prim] = list(outputs)
    while stack:
        prim = stack.pop()
        if id(prim) in seen:
            continue
        seen.add(id(prim))
        if isinstance(prim, Input):
            used.add(prim.slot)
        stack.extend(prim.args)
    return Lowered(outputs, stored, tuple((slot, slots[slot]) for slot in sorted(used)))
