"""The pass that turns regions into composites, graph by graph, bodies of If, Loop and Scan included.

Cases: any spelling of GELU, LayerNorm, RMSNorm, RoPE, SwiGLU, softmax with masks, mask building, optimizer updates: all
come out of region growth. Refused, with a reason each: nodes that are not pointwise, view-like or reductions;
shapes that are unknown or empty; extents that are not equal for certain; what the cost model expects to lose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.cost import CostModel
from tilegraph.graph import GraphView, Reach, bodies
from tilegraph.ops.lower import domain_of, kind_of
from tilegraph.ops.region import plan
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion.base import CompositePass, opsets_of
from tilegraph.rewrites.fusion.composite import DOMAIN, drop_unread, make_composite
from tilegraph.rewrites.fusion.copies import Copies
from tilegraph.rewrites.fusion.grow import grow
from tilegraph.rewrites.fusion.integers import REASON, parts_of_integers
from tilegraph.rewrites.fusion.legal import Candidate, elements, price
from tilegraph.rewrites.fusion.verdicts import Verdicts

STAGE = "fusion"
_FEW = 64  # elements: sizes, and the positions of one short axis
_CONTROL_FLOW = frozenset(("If", "Loop", "Scan"))


class RegionFusion(CompositePass):
    """Finds regions and makes each a composite if the cost model says that it wins, or always with offload "all"."""

    name = "fuse-regions"
    kind = "Region"  # of its composites

    def __init__(self, offload: str = "auto", cost_model: CostModel | None = None) -> None:
        super().__init__(offload)
        self.cost_model = cost_model or CostModel()

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        modified = False
        for graph in list(_graphs(model.graph)):
            regions = self._regions(model, graph, context)
            calls: list[ir.Node] = []
            for candidate in regions:
                call = make_composite(model, graph, candidate.nodes, candidate.outputs, candidate.clones, self.kind)
                calls.append(call)
                context.diagnostics.took(STAGE, call.name or "", f"{len(candidate.nodes)} nodes in one kernel",
                                         op=call.op_type, nodes=[n.name for n in candidate.nodes],
                                         ops=[n.op_type for n in candidate.nodes])
                modified = True
            if regions:
                drop_unread(graph, [*(node for candidate in regions for node in candidate.clones), *calls])
                graph.sort()
        return modified

    def _seeds(self, view: GraphView) -> list[ir.Node]:
        """Nodes that compute something; what only moves elements is never worth a kernel, so it is tried last and only
        with offload "all"."""
        seeds = [n for n in view.nodes if kind_of(n) in ("pointwise", "reduction")]
        if self.offload == "all":
            seeds += [n for n in view.nodes if kind_of(n) in ("view", "generator")]
        return seeds

    def _regions(self, model: ir.Model, graph: ir.Graph, context: PassContext) -> list[Candidate]:
        view = GraphView(graph)
        reach = Reach(view.nodes, ((a, b) for a, b in view.graph.edges()))
        verdicts = Verdicts(opsets_of(model), plan)
        taken: set[ir.Node] = set()
        if self.offload == "auto":
            taken = parts_of_integers(view)
        refusals: dict[ir.Node, str] = dict.fromkeys(taken, REASON)
        found: list[Candidate] = []
        copies = Copies()

        def note(node: ir.Node, reason: str) -> None:
            refusals.setdefault(node, reason)

        seeds = deque(self._seeds(view))
        declined: set[ir.Node] = set()
        while seeds:
            seed = seeds.popleft()
            if seed in taken:
                continue
            region = grow(seed, view, reach, lambda n: n not in taken, verdicts, note, copies)
            if region is None:
                declined.add(seed)
                continue
            cost = price(region, view, self.cost_model)
            own = [node for node in region.nodes if node not in region.clones]
            taken.update(own)
            if self.offload == "auto" and not cost.wins:
                for node in own:
                    refusals[node] = f"ONNX Runtime keeps it: {cost}"
                continue
            reach.contract(own)
            found.append(region)
            copies.add(region.nodes, region.clones)
            # A view that could not be a kernel may be one with what its other readers leave of it.
            again = declined & region.clones
            declined -= again
            seeds.extend(sorted(again, key=view.order.__getitem__))
        members = {node for region in found for node in region.nodes if node not in region.clones}
        products = {d.subject for d in context.diagnostics.of("gemm", taken=False)}  # why they stay is said
        for node in view.nodes:
            # A kernel, of this pass or of one before; and what computes nothing.
            if node in members or node.domain == DOMAIN or _shown(node) == "Constant":
                continue
            if copies.replace(node, view):
                self._copied(node, context)
            elif (reason := refusals.get(node)) is not None or node.name not in products:
                context.diagnostics.refused(STAGE, node.name or "", reason or _unreached(node), op=_shown(node),
                                            general=reason is None)
        return found

    @staticmethod
    def _copied(node: ir.Node, context: PassContext) -> None:
        context.diagnostics.took(STAGE, node.name or "", "each kernel that reads it has a copy of it", op=_shown(node))


def _unreached(node: ir.Node) -> str:
    """Why a node that no region has tried is in none."""
    if _shown(node) in ("Shape", "Size"):
        return "ONNX Runtime knows sizes without computing anything"
    if kind_of(node) is None:
        return f"{node.op_type} is not an operator that regions take"
    if all(v.dtype is not None and v.dtype.is_integer() and v.shape is not None and elements(v) <= _FEW
           for v in node.outputs):
        return "it works out sizes or positions, too few numbers for a kernel"
    return "it only moves elements, and no region beside it can take it in"


def _graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """`graph` and the bodies of control flow below it. Bodies of operators that ONNX Runtime expands as functions
    (SequenceMap) are left alone: it does so after our provider has taken its nodes."""
    yield graph
    for node in graph:
        if domain_of(node) == "" and node.op_type in _CONTROL_FLOW:
            for body in bodies(node):
                yield from _graphs(body)


def _shown(node: ir.Node) -> str:
    domain = domain_of(node)
    return f"{domain}.{node.op_type}" if domain else node.op_type
