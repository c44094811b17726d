"""The pass that makes matrix products with constant matrices composites of their own.

Cases: float32 MatMul (of a vector too), Gemm with any attributes, and Einsum of rows, summed labels and columns, whose
second operand is an initializer; any leading dims of the first, symbolic ones included. The epilogue is whatever
follows point by point and ends in one value: bias, activations however they are spelled, residual sums, scales; views
at its end become the addresses of the stores. Refused, with a reason each: matrices that are not constant, not float32
or one for each batch; left operands that are not contiguous along the summed dim; a matrix that something else reads
too, of which a packed copy would have to be kept beside the original (but for embeddings, which Gather reads); and what
ONNX Runtime does as fast (small matrices).
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tilegraph.graph import GraphView, all_graphs
from tilegraph.ops.gemm import GemmSpace, lower_gemm, plan_gemm
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline
from tilegraph.passes import PassContext
from tilegraph.rewrites.fusion.base import CompositePass, opsets_of
from tilegraph.rewrites.fusion.composite import drop_unread, make_composite
from tilegraph.rewrites.fusion.integers import parts_of_integers
from tilegraph.rewrites.fusion.verdicts import Verdicts
from tilegraph.rewrites.gemm.find import Candidate, find, find_joined, is_product, readers_outside
from tilegraph.rewrites.gemm.join import join
from tilegraph.rewrites.gemm.price import check_price
from tilegraph.rewrites.gemm.rounding import rounded_nodes
from tilegraph.rewrites.gemm.stored import has_constant_matrix

STAGE = "gemm"
MIN_BITS = 256


class GemmFusion(CompositePass):
    """Takes the products that are expected to win, or with offload "all" every one that it can.

    `precision` "bf16": in kernels, operands are rounded to bfloat16; what stays with ONNX Runtime stays float32.
    `vector_bits`: of the registers that kernels will have. Without fused multiply-add, below 256, there are none.
    """

    name = "fuse-gemm"

    def __init__(self, offload: str = "auto", precision: str = "float32", vector_bits: int = 512) -> None:
        super().__init__(offload)
        self.vector_bits = vector_bits
        self.precision = precision

    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        verdicts = Verdicts(opsets_of(model), plan_gemm, lower_gemm)
        views = {graph: GraphView(graph) for graph in all_graphs(model.graph)}
        found: list[tuple[ir.Graph, Candidate]] = []
        for graph, view in views.items():
            found += [(graph, candidate) for candidate in self._candidates(view, verdicts, context)]
        alone = self._unshared(found, context)
        kept = [(graph, candidate) for graph, view in views.items()
                for candidate in join([one for where, one in alone if where is graph], view, verdicts)]
        for graph, candidate in kept:
            nodes = rounded_nodes(candidate, self.precision)
            call = make_composite(model, graph, nodes, candidate.outputs, candidate.clones, kind="Gemm")
            context.diagnostics.took(STAGE, call.name or "", _said(candidate),
                                     op=call.op_type, nodes=[n.name for n in candidate.nodes],
                                     rows=str(candidate.space.m), depth=candidate.space.depth,
                                     columns=sum(one.n for one in candidate.space.members),
                                     precision=self.precision if nodes is not candidate.nodes else "float32")
        for graph in dict.fromkeys(graph for graph, _ in kept):
            drop_unread(graph, [n for where, candidate in kept if where is graph for n in candidate.clones])
            graph.sort()
        return bool(kept)

    def _candidates(self, view: GraphView, verdicts: Verdicts[GemmSpace], context: PassContext) -> list[Candidate]:
        kept = parts_of_integers(view, has_constant_matrix) if self.offload == "auto" else set()
        taken: set[ir.Node] = set()
        found: list[Candidate] = []

        def free(node: ir.Node) -> bool:
            return node not in taken and node not in kept

        for node in view.nodes:
            if not is_product(node) or node in taken:
                continue
            try:
                if self.vector_bits < MIN_BITS:
                    raise Decline(f"matrix products need vectors of {MIN_BITS} bits or more, not {self.vector_bits}")
                candidate = find(node, view, verdicts, free)
                if self.offload == "auto":
                    check_price(candidate.space)
                candidate = find_joined(candidate, view, verdicts, free)
            except Decline as reason:
                _refuse(context, node, reason.reason)
                continue
            taken.update(n for n in candidate.nodes if n not in candidate.clones)
            found.append(candidate)
        return found

    def _unshared(self, found: list[tuple[ir.Graph, Candidate]], context: PassContext) \
            -> list[tuple[ir.Graph, Candidate]]:
        """Those whose matrix nothing else reads, so that the packed one takes the original's place.

        Embeddings tied to the last product are the exception: ONNX Runtime, too, keeps a second copy for the product.
        """
        taken = _gone([candidate for _, candidate in found])
        layouts: dict[ir.Value, set[tuple[bool, int]]] = {}
        for _, candidate in found:
            for matrix, how in zip(candidate.matrices, candidate.space.matrices, strict=True):
                layouts.setdefault(matrix, set()).add((how.transposed, candidate.space.depth))
        kept: list[tuple[ir.Graph, Candidate]] = []
        for graph, candidate in found:
            for matrix in candidate.matrices:
                reader = next((r for r in readers_outside(matrix, taken) if not _looks_up(r)), None)
                reason = ""
                if matrix.is_graph_output():
                    reason = "is a graph output"
                elif reader is not None:
                    reason = f"is also read by {reader.op_type} {reader.name}: a packed copy would be kept beside it"
                elif len(layouts[matrix]) > 1:
                    reason = "is read in another layout too"
                if reason:
                    _refuse(context, candidate.products[0], f"its matrix {matrix.name} {reason}")
                    break
            else:
                kept.append((graph, candidate))
        return kept


def _gone(candidates: Sequence[Candidate]) -> set[ir.Node]:
    """The nodes that leave the graph with the candidates: clones do where only candidates read them."""
    clones = {node for candidate in candidates for node in candidate.clones}
    gone = {node for candidate in candidates for node in candidate.nodes}
    while True:
        kept = {n for n in clones & gone if any(v.is_graph_output() or any(user not in gone for user, _ in v.uses())
                                                for v in n.outputs)}
        if not kept:
            return gone
        gone -= kept


def _said(candidate: Candidate) -> str:
    said = f"{len(candidate.nodes)} nodes in one kernel"
    if len(candidate.products) > 1:
        said += f", {len(candidate.products)} products of the same rows among them"
    if len(candidate.outputs) > 1:
        said += ", each with a result of its own"
    return said + (f"; apart from other products of its rows: {candidate.apart}" if candidate.apart else "")


def _looks_up(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Gather"


def _refuse(context: PassContext, node: ir.Node, reason: str) -> None:
    """Of products of two computed operands, attention may have more to say."""
    computed = all(v is None or constant_of(v) is None for v in node.inputs[:2])
    context.diagnostics.refused(STAGE, node.name or "", reason, op=node.op_type, general=computed)
