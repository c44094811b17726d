"""From nodes to prims: `lower_region` turns the nodes of a region into the DAG that kernels are made from.

Rules are listed in tables; every other operator is pointwise and comes from the operator table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from tilegraph.ops.count import requires
from tilegraph.ops.dtypes import LARGEST, NARROW, stored_name
from tilegraph.ops.lower.base import (
    NodeContext,
    compute_dtype,
    constant_of,
    point,
    quotient,
    scalar,
    shape_of,
)
from tilegraph.ops.lower.extents import Renames, divided
from tilegraph.ops.lower.gathers import takes_slices
from tilegraph.ops.lower.resize import mode_of
from tilegraph.ops.lower.steps import steps_follow
from tilegraph.ops.lower.tables import COMPOSED, GENERATORS, REDUCTIONS, STEERED, VIEWS
from tilegraph.ops.lower.tables import Rule as Rule
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.ops.prims import Const, Decline, Extent, Input, Lowered, Point, Prim
from tilegraph.spec.dims import Dim

_DATA = frozenset({"Concat", "GatherElements", "GatherND", "ReverseSequence"})  # views of which all inputs are data


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
    if key[0] == "" and key[1] in STEERED and mode_of(node.attributes) == "nearest":
        return "view"
    return "pointwise" if key in POINTWISE or key in COMPOSED else None


def is_parameter(node: ir.Node, index: int) -> bool:
    """Whether input `index` steers the operation (axes, sizes, positions) and must be constant, or is data."""
    if domain_of(node) == "" and node.op_type in STEERED:
        return index > 0
    if domain_of(node) == "" and node.op_type in ("OneHot", "AffineGrid"):
        return index == 1
    match kind_of(node):
        case "view":
            if node.op_type == "Gather":
                return index > 0 and takes_slices(node)
            return index > 0 and node.op_type not in _DATA
        case "reduction":
            return index > 0 and node.op_type.startswith(("Reduce", "Cum"))
        case "generator":
            return index > 0 or node.op_type in ("Range", "ConstantOfShape")
    return False


def _rule(node: ir.Node) -> Rule:
    key = (domain_of(node), node.op_type)
    if key[0] == "" and key[1] in VIEWS:
        return VIEWS[key[1]]
    if key in REDUCTIONS:
        return REDUCTIONS[key]
    if key in GENERATORS:
        return GENERATORS[key]
    if key in COMPOSED:
        return COMPOSED[key]
    if key in POINTWISE:
        return _pointwise
    raise Decline(f"{node.op_type} is not an operator that regions take", node.name or "")


def _pointwise(c: NodeContext) -> list[Prim]:
    operands = [c.optional(i) for i in range(len(c.node.inputs))]
    for i, value in enumerate(c.node.inputs):
        if value is not None:
            c.arg(i)
    dtype = compute_dtype(c.node.outputs[0])
    if c.node.op_type == "Div" and domain_of(c.node) == "" and dtype in ("float32", "float64") \
            and not _is_power_of_two(operands[1]) and steps_follow(c.node):
        return [quotient(c.arg(0), c.arg(1))]
    attrs = c.attrs()
    largest = LARGEST.get(stored_name(c.node.outputs[0].dtype)) if c.node.op_type == "Clip" else None
    if largest is not None:  # bounds that are absent are those of the type, which kernels compute in float32
        attrs = {"min": -largest, "max": largest, **attrs}
    if c.node.op_type == "Clip":  # bounds that are attributes, before opset 11, make the same kernel as constants
        given = [p if p is not None else scalar(float(attrs[k]), dtype) if k in attrs else None
                 for p, k in zip([*operands[1:], None, None], ("min", "max"), strict=False)]
        operands, attrs = [operands[0], *given], {k: v for k, v in attrs.items() if k not in ("min", "max")}
    return [point(c.node.op_type, operands, dtype, domain=domain_of(c.node), attrs=attrs, opset=c.opset)]


def _is_power_of_two(prim: Prim | None) -> bool:
    return isinstance(prim, Const) and abs(math.frexp(prim.value)[0]) == 0.5


class _Operands(list[Prim | None]):
    """Operands whose lowering failed keep their reason until a rule asks for them."""

    def __init__(self, items: Sequence[Prim | Decline | None]) -> None:
        super().__init__([None if isinstance(p, Decline) else p for p in items])
        self.reasons = {i: p for i, p in enumerate(items) if isinstance(p, Decline)}


class _Context(NodeContext):
    def __init__(self, node: ir.Node, args: _Operands, opset: int, rename: Renames) -> None:
        super().__init__(node, args, opset, rename)
        self._reasons = args.reasons

    def arg(self, i: int) -> Prim:
        if i in self._reasons:
            raise self._reasons[i]
        return super().arg(i)


def lower_region(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int],
                 extra: Mapping[tuple[str, str], Rule] | None = None) -> Lowered:
    """Lowers `nodes` (in topological order) to one prim per value of `outputs`.

    Scalar constants become part of the computation; every other outside value becomes an input if the outputs need it.
    Every symbol that the computation uses is a dim of an input by itself: an input's dim such as "past+seq" whose parts
    are not known from elsewhere counts as one symbol. `extra`: rules for more operators, by (domain, name); with one
    for DequantizeLinear, integers of 4 bits are inputs, too, which are stored as the compiler packs them.

    Raises `Decline` with the node and the reason.
    """
    lowered = _lower(nodes, outputs, opsets, Renames(), extra or {})
    unbound = _unbound(lowered, Renames())
    if unbound:
        dims = {d for _, value in lowered.inputs for d in shape_of(value)}
        multiples = divided(dims, unbound).keys()
        unbound -= multiples
        rename = Renames(dims, unbound)
        if rename:
            # Another one: what nodes make of the renamed extents is added to it.
            lowered = _lower(nodes, outputs, opsets, Renames(dims, unbound), extra or {})
            unbound = _unbound(lowered, rename) - multiples
        if unbound:
            raise Decline(f"the extent {min(unbound)} is not known from the inputs of the kernel")
    return lowered


def prims_of(lowered: Lowered) -> Iterator[Prim]:
    """Every prim once."""
    seen: set[int] = set()
    stack: list[Prim] = list(lowered.outputs)
    while stack:
        prim = stack.pop()
        if id(prim) not in seen:
            seen.add(id(prim))
            yield prim
            stack.extend(prim.args)


def reports(lowered: Lowered) -> bool:
    """Whether the computation may end a run with an error."""
    return any(isinstance(prim, Point) and any("int" in a.dtype for a in prim.operands)
               and requires(prim.fn, [a.dtype for a in prim.operands]) for prim in prims_of(lowered))


def _unbound(lowered: Lowered, rename: Renames) -> set[str]:
    """Symbols of the computation that are not by themselves a dim of an input which it reads.

    The inputs count as they lie outside: a reshape inside the region gives them dims that nobody knows.
    """
    used: set[str] = set()
    for prim in prims_of(lowered):
        for dim in (*prim.shape, *((prim.dim,) if isinstance(prim, Extent) else ())):
            used |= dim.symbols
    bare = {dim.bare_symbol for _, value in lowered.inputs for dim in shape_of(value, rename)}
    return used - {name for name in bare if name is not None}


def _lower(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opsets: Mapping[str, int],
           rename: Renames, extra: Mapping[tuple[str, str], Rule]) -> Lowered:
    prims: dict[ir.Value, Prim | Decline] = {}
    slots: list[ir.Value] = []

    def operand(value: ir.Value | None) -> Prim | Decline | None:
        if value is None:
            return None
        if value not in prims:
            try:
                prims[value] = _outside(value, slots, rename, ("", "DequantizeLinear") in extra)
            except Decline as reason:
                prims[value] = reason
        return prims[value]

    for node in nodes:
        if node.op_type == "Constant" and domain_of(node) == "":
            continue  # read through constant_of by whoever uses it
        operands = _Operands([operand(v) for v in node.inputs])
        context = _Context(node, operands, opsets.get(domain_of(node), 1), rename)
        try:
            results = (extra.get((domain_of(node), node.op_type)) or _rule(node))(context)
            for value, prim in zip(node.outputs, results, strict=False):
                _check(value, prim)
                prims[value] = prim
                if rename:
                    _learn(rename, value, prim)
        except Decline as reason:
            raise Decline(reason.reason, reason.node or node.name or "") from None
    found: list[Prim] = []
    for value in outputs:
        made = prims.get(value)
        if made is None or isinstance(made, Decline):
            raise made or Decline(f"{value.name} is not computed by the region", value.name or "")
        found.append(made)
    stored = tuple(stored_name(v.dtype, v.name or "") for v in outputs)
    used = {p.slot for p in prims_of(Lowered(tuple(found), stored, ())) if isinstance(p, Input)}
    return Lowered(tuple(found), stored, tuple((slot, slots[slot]) for slot in sorted(used)))


def _learn(rename: Renames, value: ir.Value, prim: Prim) -> None:
    """A window's result has extents that its rule computes from renamed ones: views behind it must know them."""
    if value.shape is None:
        return
    for extent, dim in zip(value.shape, prim.shape, strict=False):
        inferred = extent if isinstance(extent, int) else extent.value
        if isinstance(inferred, str) and Dim.of(inferred).bare_symbol is None:
            rename.setdefault(Dim.of(inferred), dim)


def _outside(value: ir.Value, slots: list[ir.Value], rename: Renames, narrow: bool) -> Prim:
    name = "" if value.dtype is None else value.dtype.name.lower()
    if narrow and name in NARROW:
        slots.append(value)
        return Input(shape_of(value, rename), NARROW[name], slot=len(slots) - 1, stored=name)
    stored = stored_name(value.dtype, value.name or "")
    shape = shape_of(value, rename)
    if all(d == 1 for d in shape):
        array = constant_of(value)
        if array is not None:
            return Const(shape, compute_dtype(value), value=array.reshape(-1)[0].item())
    if any(d == 0 for d in shape):
        raise Decline(f"{value.name} is empty", value.name or "")
    slots.append(value)
    return Input(shape, compute_dtype(value), slot=len(slots) - 1, stored=stored)


def _check(value: ir.Value, prim: Prim) -> None:
    """The lowered dtype and rank must be those that shape inference found, where it found any."""
    if value.dtype is not None and compute_dtype(value) != prim.dtype:
        raise Decline(f"{value.name} is {value.dtype.name}, but its lowering gives {prim.dtype}")
    if any(d == 0 for d in prim.shape):
        raise Decline(f"{value.name} is empty")
    if value.shape is not None and len(value.shape) != len(prim.shape):
        raise Decline(f"{value.name} has rank {len(value.shape)}, its lowering {len(prim.shape)}")
