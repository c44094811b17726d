"""A node between a kernel and what ONNX Runtime moves a QuantizeLinear across.

ONNX Runtime 1.32 moves QuantizeLinear up across Transpose, Reshape and the like, to the result of whatever made the
value (its QDQPropagation), and gives the new value no type. Where a plugin node made it the session fails, because such
nodes infer no types. Max of one operand, which it keeps, has types; it costs a copy.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.graph import all_graphs
from tilegraph.ops.lower import domain_of
from tilegraph.passes import Pass, PassContext, PassResult
from tilegraph.rewrites.fusion.composite import DOMAIN
from tilegraph.rewrites.normalise.edit import Names

_CROSSED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


class QuantizeBarrier(Pass):
    """Goes last: everything that becomes a kernel has become one."""

    name = "quantize-barrier"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        names = Names(model)
        modified = False
        for graph in all_graphs(model.graph):
            for node in list(graph):
                if domain_of(node) == "" and node.op_type == "QuantizeLinear" and (first := _first_crossed(node)):
                    _insert(first, names)
                    context.diagnostics.took(self.name, first.name or "", "a node with types before what ONNX Runtime "
                                             f"moves {node.name} across", op=first.op_type)
                    modified = True
        return PassResult(modified)


def _first_crossed(quantize: ir.Node) -> ir.Node | None:
    """The topmost node that `quantize` would move across, if a composite makes what it reads."""
    crossed: ir.Node | None = None
    value = quantize.inputs[0]
    while value is not None and (node := value.producer()) is not None:
        if node.domain == DOMAIN:
            return crossed
        if domain_of(node) != "" or node.op_type not in _CROSSED:
            return None
        crossed, value = node, node.inputs[0]
    return None


def _insert(node: ir.Node, names: Names) -> None:
    value = node.inputs[0]
    assert value is not None
    barrier = ir.node("Max", [value], name=names.node(f"{node.name}_barrier"))
    made = barrier.outputs[0]
    made.name, made.type, made.shape = names.value(f"{value.name}_typed"), value.type, value.shape
    node.prepend(barrier)
    node.replace_input_with(0, made)
