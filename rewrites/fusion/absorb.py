"""The pass that gives small nodes between kernels to the kernels' partitions.

A region pays for a node of the plugin and has to win alone. Next to a partition it pays for a call inside of it, some
60 ns, and every node of ONNX Runtime that it saves costs more than that, however little it computes: dispatch, the
shapes and the memory of its results, and where it lies between two partitions, the second of them. In silero-vad's
step of 20 µs such nodes took 8.

Cases: pointwise nodes, reductions, views and generators that read from a composite or are read by one; grown like any
region. Refused, with a reason each: what the cost model expects to be slower even so, what cannot be in one partition
with its neighbour because another path leads there, and everything that regions refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from tilegraph.cost import CostModel, RegionCost, estimate
from tilegraph.graph import GraphView, Reach, all_graphs
from tilegraph.ops.lower import kind_of
from tilegraph.ops.region import plan_small
from tilegraph.ops.space import traffic
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion.base import opsets_of
from tilegraph.rewrites.fusion.blocked import cut_out, free_in_runtime
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.rewrites.fusion.copies import Copies
from tilegraph.rewrites.fusion.grow import grow
from tilegraph.rewrites.fusion.integers import parts_of_integers
from tilegraph.rewrites.fusion.legal import Candidate, elements, size_bytes, work
from tilegraph.rewrites.fusion.regions import STAGE, RegionFusion
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.normalise.edit import is_used

_NODE_US = 0.3  # a small node of ONNX Runtime, dispatch and the memory of its result
_CALL_US = 0.06  # a kernel more in a partition
_PARTITION_US = 0.35  # a node of the plugin more, where this one would cut a partition in two


class AbsorbLeftovers(RegionFusion):
    """Runs when the composites are made; with offload "all" nothing is left to take."""

    name = "absorb-leftovers"
    kind = "Small"

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        modified = super().fuse(model, context)
        for graph in all_graphs(model.graph):
            for node in list(graph):  # what absorbed views read is in the kernel
                if node.op_type == "Constant" and node.domain == "" and not is_used(node.outputs[0]):
                    graph.remove(node, safe=True)
                    modified = True
        return modified

    def _regions(self, model: ir.Model, graph: ir.Graph, context: PassContext) -> list[Candidate]:
        view = GraphView(graph)
        left = [n for n in view.nodes if n.domain != DOMAIN and kind_of(n) is not None]
        if not left or len(left) == len(view.nodes):
            return []
        reach = Reach(view.nodes, ((a, b) for a, b in view.graph.edges()))
        verdicts = Verdicts(opsets_of(model), plan_small)
        free = set(left) - parts_of_integers(view)
        kernels: dict[ir.Node, tuple[ir.Node, ...]] = {  # with what became one node with each
            n: (n,) for n in view.nodes if n.domain == DOMAIN}
        refusals: dict[ir.Node, str] = {}
        tried: set[ir.Node] = set()
        copies = Copies()
        found: list[Candidate] = []

        def note(node: ir.Node, reason: str) -> None:
            refusals.setdefault(node, reason)

        pending = True
        while pending:  # what was absorbed is a neighbour for what is left
            pending = False
            for seed in left:
                if seed not in free or seed in tried or not _beside(seed, kernels, view):
                    continue
                tried.add(seed)
                region = grow(seed, view, reach, free.__contains__, verdicts, note, copies)
                if region is None:
                    continue
                own = tuple(n for n in region.nodes if n not in region.clones)
                cost = _price(region, view, self.cost_model)
                between = any(n in kernels for node in own for n in view.producers(node)) \
                    and any(n in kernels for node in own for n in view.consumers(node))
                if cost.kernel_us >= cost.runtime_us + between * _PARTITION_US:
                    refusals[seed] = f"ONNX Runtime keeps it, even beside a kernel: {cost}"
                    continue
                if not any(reach.is_convex([*own, *kernels[n]]) for n in _neighbours(own, view) if n in kernels):
                    refusals[seed] = "another path leads from its kernel to it"
                    continue
                reach.contract(own)
                found.append(region)
                free.difference_update(own)
                kernels.update(dict.fromkeys(own, own))
                copies.add(region.nodes, region.clones)
                pending = True
        for node, reason in refusals.items():
            if node not in free:
                continue
            if copies.replace(node, view):
                self._copied(node, context)
            else:
                context.diagnostics.refused(STAGE, node.name or "", reason, op=node.op_type)
        return found


def _neighbours(nodes: Sequence[ir.Node], view: GraphView) -> set[ir.Node]:
    return {n for node in nodes for n in (*view.consumers(node), *view.producers(node))}


def _beside(node: ir.Node, kernels: Collection[ir.Node], view: GraphView) -> bool:
    return any(n in kernels for n in _neighbours([node], view))


def _price(region: Candidate, view: GraphView, model: CostModel) -> RegionCost:
    """The region's nodes in ONNX Runtime, and as one kernel more in a partition."""
    runtime = 0.0
    for node in region.nodes:
        if node in region.clones or free_in_runtime(node, view):
            continue
        moved = sum(size_bytes(v) for v in (*node.inputs, *node.outputs) if v is not None)
        size = max((elements(v) for v in node.outputs), default=0)
        runtime += _NODE_US + model.node_us(node.op_type, size, moved) - model.node_us(node.op_type, 0, 0)
    read, written = traffic(region.space)
    busy = model.kernel_us(vectors=work(region.space), bytes_moved=estimate(read + written), inputs=0)
    busy -= model.kernel_us(vectors=0.0, bytes_moved=0, inputs=0)
    reorders = sum(model.reorder_us(size_bytes(v)) for v in cut_out(
        [v for _, v in region.lowered.inputs], region.outputs, set(region.nodes), view))
    return RegionCost(runtime, _CALL_US + busy + reorders, len(region.nodes))
