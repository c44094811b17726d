"""Convolutions in groups that do not divide a block get groups that do.

A block of L channels holds whole groups, or a group is whole blocks; groups of 3, 20 or 24 channels are neither. Such a
convolution is done on more channels and filters, which are copies:

    sum over c of w[c] x[c]  =  sum over c of the copies' w[c] / 2 x[c] + w[c] / 2 x[c]

Weights are halved as often as there are further copies, which is exact, so that an infinity or NaN of a channel does
what it did. Filters that are copies are left out again behind the convolution and what is pointwise there. Both are
Gather nodes of channels, which the planner makes kernels (`rewrites.conv.channels`).

Handles: float32 Conv with constant weights, in 2 groups or more, with one or two spatial dims, from opset 13 on.
Refused: what has a blocked form already, and what would gain less than .15 with the copies that move channels, and with
conversions where no other window is near, so that the planner never leaves more products to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.cost import conv as cost
from tilegraph.cost import estimate
from tilegraph.graph import GraphView, all_graphs
from tilegraph.ops.lower import kind_of
from tilegraph.ops.lower.base import constant_of, shape_of
from tilegraph.ops.prims import Decline
from tilegraph.passes import PassContext
from tilegraph.rewrites.algebra.constants import Constants
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.conv.units import is_window
from tilegraph.rewrites.conv.write import channels_of
from tilegraph.rewrites.fusion.base import CompositePass
from tilegraph.rewrites.fusion.blocked import gate_of
from tilegraph.rewrites.fusion.legal import elements, size_bytes
from tilegraph.rewrites.normalise.edit import groups_of
from tilegraph.spec.dims import Dim

# In ONNX Runtime, a small product for each group: .08 of the peak for groups of 3 to 3 channels, .14 for 4, .31 for 20
# and 24 (3x3, 28x28 and 56x56).
_RUNTIME_SHARE, _RUNTIME_SHARE_OF_A_CHANNEL = 0.31, 0.035
_FLOP_PER_US = 266_000.0
_COPIED_BYTES_PER_US = 60_000.0  # read or written: what a kernel has just made is in the caches
_MOST_TIME = 0.85  # 20 channels filled up to 32 take .94 by this estimate, and lost 2 %


@dataclass(frozen=True)
class Sizes:
    """Channels and filters of a group; `several`: a block holds several groups."""

    depth: int
    filters: int
    several: bool = False


class WholeGroups(CompositePass):
    """For blocks of `lanes` channels."""

    name = "whole-groups"

    def __init__(self, offload: str = "auto", lanes: int = 16) -> None:
        super().__init__(offload)
        self.lanes = lanes

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model.graph):
            view = GraphView(graph)
            for node in view.nodes:
                if node.op_type != "Conv" or node.domain != "" or groups_of(node) < 2:
                    continue
                try:
                    old, new = self._rewrite(node, view, constants)
                except Decline as reason:
                    context.diagnostics.refused(self.name, node.name or "", reason.reason, op="Conv")
                    continue
                if new != old:
                    context.diagnostics.took(self.name, node.name or "", f"groups of {old.depth} to {old.filters} "
                                             f"channels are groups of {new.depth} to {new.filters}", op="Conv")
                    modified = True
        return modified

    def _rewrite(self, node: ir.Node, view: GraphView, constants: Constants) -> tuple[Sizes, Sizes]:
        source, weights = node.inputs[0], None if node.inputs[1] is None else constant_of(node.inputs[1])
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        added = None if bias is None else constant_of(bias)
        if weights is None or weights.dtype != np.float32 or weights.ndim not in (3, 4) or (bias is None) != \
                (added is None):
            raise Decline("weights that are not constant float32 of one or two spatial dims")
        groups = groups_of(node)
        old = Sizes(weights.shape[1], weights.shape[0] // groups)
        new = min(sizes_for(old, self.lanes), key=lambda s: _kernel_us(node, groups, s, self.lanes), default=old)
        nodes = [node, *_pointwise_behind(node, view)]
        if new == old or source is None:
            return old, old
        if any(v.shape is None for n in nodes for v in (source, *n.outputs)):
            raise Decline("a shape is unknown")
        if self.offload != "all":
            _check(node, groups, old, new, self.lanes, view)
        b = Build(nodes[-1], constants.names, constants.model.graph.opset_imports.get("", 1))
        copies = np.arange(new.depth) % old.depth
        taken = [int(group * old.depth + c) for group in range(groups) for c in copies]
        rows = np.concatenate([group * old.filters + np.arange(new.filters) % old.filters for group in range(groups)])
        made: dict[ir.Value, ir.Value] = {source: source}
        if new.depth != old.depth:
            made[source] = _shaped(b.op("Gather", source, b.ints(*taken), axis=1), source, len(taken))
        more = [b.const((weights[:, copies] * _shares(copies).reshape(-1, *[1] * (weights.ndim - 2)))[rows])]
        more += [] if added is None else [b.const(added.reshape(-1)[rows])]
        for old_node in nodes:
            inputs = [made.get(v, v) if v is not None else None for v in old_node.inputs]
            if old_node is node:
                inputs = [made[source], *more]
            copy = b.op(old_node.op_type, *inputs)
            copy.producer().attributes.update({a.name: a for a in old_node.attributes.values()})  # type: ignore[union-attr]
            made[old_node.outputs[0]] = _shaped(copy, old_node.outputs[0], rows.size)
        result = made[nodes[-1].outputs[0]]
        if new.filters != old.filters:
            kept = [group * new.filters + c for group in range(groups) for c in range(old.filters)]
            result = _shaped(b.op("Gather", result, b.ints(*kept), axis=1), nodes[-1].outputs[0], len(kept))
        graph = node.graph
        assert graph is not None
        b.finish([result], constants.model.graph, owned=False)
        graph.remove([n for n in nodes if n.graph is not None], safe=True)
        return old, new


def sizes_for(old: Sizes, lanes: int) -> list[Sizes]:
    """Groups that have a blocked form and hold `old`; none where it has one itself."""
    several = [Sizes(d, f, True) for f in range(old.filters, lanes + 1) if lanes % f == 0
               for d in range(old.depth, min(f + 1, lanes)) if f % d == 0]
    whole = Sizes(-(-old.depth // lanes) * lanes, -(-old.filters // lanes) * lanes)
    fits = any((s.depth, s.filters) == (old.depth, old.filters) for s in (*several, whole))
    return [] if fits else [*several, whole]


def _kernel_us(node: ir.Node, groups: int, sizes: Sizes, lanes: int) -> float:
    return cost.kernel_us(_work(node, groups, sizes, "groups" if sizes.several else "direct", lanes))


def _work(node: ir.Node, groups: int, sizes: Sizes, algorithm: str, lanes: int) -> cost.Work:
    source, weights, out = node.inputs[0], node.inputs[1], node.outputs[0]
    assert source is not None
    assert weights is not None
    results = elements(out) // max(channels_of(out), 1)
    taps = estimate(Dim.product(shape_of(weights)[2:]))
    filters = groups * sizes.filters
    read = 4 * elements(source) * sizes.depth * groups // channels_of(source)
    return cost.Work("grouped" if algorithm == "groups" else "conv", algorithm, lanes, sizes.depth, filters, taps,
                     results, read, 4 * results * filters)


def _check(node: ir.Node, groups: int, old: Sizes, new: Sizes, lanes: int, view: GraphView) -> None:
    """`Decline` where ONNX Runtime takes less than the kernel and all that it may need around it: copies that move
    channels, and conversions where no other window is near."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    before, behind = size_bytes(source), size_bytes(out)
    flop = 2.0 * _work(node, groups, old, "groups", lanes).taps * old.depth * behind / 4
    runtime = flop / (_FLOP_PER_US * min(_RUNTIME_SHARE, _RUNTIME_SHARE_OF_A_CHANNEL * old.depth))
    kernel = _kernel_us(node, groups, new, lanes)
    copied = before * new.depth // old.depth + behind * new.filters // old.filters
    around = 2 * copied / _COPIED_BYTES_PER_US
    for value, size, near in ((source, before, view.producers), (out, behind, view.consumers)):
        if not _reaches_window(node, near):
            around += cost.convert_us(size, channels_of(value) % lanes == 0)
    if kernel + around > _MOST_TIME * runtime:
        raise Decline(f"groups of {old.depth} to {old.filters} channels: {runtime:.1f} µs in ONNX Runtime, "
                      f"{kernel:.1f} filled up to {new.depth} and {new.filters}, and {around:.1f} around that")


def _reaches_window(node: ir.Node, near: Callable[[ir.Node], list[ir.Node]]) -> bool:
    """Whether another window lies on one side of `node`, with nothing but pointwise nodes in between."""
    seen, pending = {node}, [node]
    while pending:
        for other in near(pending.pop()):
            if is_window(other):
                return True
            if other not in seen and kind_of(other) == "pointwise":
                seen.add(other)
                pending.append(other)
    return False


def _shares(copies: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """What each copy of a channel has of its weight: 1/2, 1/4, 1/4 of three."""
    left = np.bincount(copies)
    seen = np.zeros_like(left)
    shares = np.ones(copies.size, np.float32)
    for place, channel in enumerate(copies):
        seen[channel] += 1
        shares[place] = 0.5 ** min(seen[channel], left[channel] - 1)
    return shares


def _pointwise_behind(node: ir.Node, view: GraphView) -> list[ir.Node]:
    """What follows `node` element by element and that nothing else reads: activations, with their gate."""
    found: list[ir.Node] = []
    value = node.outputs[0]
    while value not in view.outputs:
        users = view.users(value)
        product = users[-1] if users else None
        gate = None if product is None else gate_of(product)
        if product is not None and gate is not None and set(users) == {gate, product} and \
                set(view.users(gate.outputs[0])) == {product} and gate.outputs[0] not in view.outputs:
            found += [gate, product]
        elif product is not None and len(users) == 1 and _unary(product, value):
            found.append(product)
        else:
            break
        value = found[-1].outputs[0]
    return found


def _unary(node: ir.Node, value: ir.Value) -> bool:
    others = [constant_of(v) for v in node.inputs if v is not None and v is not value]
    rank = 0 if value.shape is None else len(value.shape)  # a number of more axes would move the channels
    return kind_of(node) == "pointwise" and len(node.outputs) == 1 and len(others) < len(node.inputs) and all(
        a is not None and a.size == 1 and a.ndim <= rank for a in others)


def _shaped(made: ir.Value, like: ir.Value, channels: int) -> ir.Value:
    assert like.shape is not None
    made.type = like.type
    made.shape = ir.Shape([channels if k == 1 else d for k, d in enumerate(like.shape)])
    return made
