"""Operators that are replaced by their function bodies, as the ONNX specification defines them.

Handles: those that ONNX Runtime's CPU provider has no kernel for: it would inline the same body itself, after our
provider has taken its nodes (losses), or could not run them at all (SwiGLU, and the steps of optimizers, whose bodies
are in optimizers.py). A body may depend on which inputs there are and on their types, so shapes are inferred first, and
again for operators inside of bodies.

Refused: a node whose inputs' element types are unknown; a body that is written for another opset in which one of its
operators means something else.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
from onnx import defs
from onnx_ir.passes.common import InlinePass

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.optimizers import DOMAIN as TRAINING
from tilegraph.rewrites.normalise.optimizers import optimizer_body
from tilegraph.rewrites.normalise.shapes import Shapes

EXPANDED = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "SwiGLU")
_DOMAIN = "ai.tilegraph.expanded"


class ExpandFunctions(Pass):
    name = "expand-functions"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        refused: set[ir.Node] = set()
        while found := [n for g in all_graphs(model) for n in g
                        if (is_op(n, *EXPANDED) or n.domain == TRAINING) and n not in refused]:
            Shapes().run(model, PassContext())
            taken = 0
            for k, node in enumerate(found):
                try:
                    body = _body(node, model.graph.opset_imports.get("", 1))
                except _Refusal as reason:
                    refused.add(node)
                    context.diagnostics.refused(self.name, node.name or "", str(reason), op=node.op_type)
                    continue
                taken += 1
                context.diagnostics.took(self.name, node.name or "", f"{len(body)} nodes", op=node.op_type)
                identifier = (_DOMAIN, f"{node.op_type}_{k}", "")
                model.functions[identifier] = ir.Function(_DOMAIN, identifier[1], graph=body.graph,
                                                          attributes=list(body.attributes.values()))
                node.domain, node.op_type = identifier[0], identifier[1]
            if taken:
                model.graph.opset_imports[_DOMAIN] = 1
                InlinePass()(model)
                model.graph.opset_imports.pop(_DOMAIN, None)
                modified = True
        if modified and not refused:
            model.graph.opset_imports.pop(TRAINING, None)
        return PassResult(modified)


class _Refusal(Exception):
    pass


def _body(node: ir.Node, opset: int) -> ir.Function:
    """The function that defines `node`, its default attributes made explicit."""
    if node.domain == TRAINING:
        step = optimizer_body(node, opset)
        if isinstance(step, str):
            raise _Refusal(step)
        return ir.serde.deserialize_function(step)
    if not defs.has(node.op_type, opset, ""):
        raise _Refusal(f"ONNX has no such operator at opset {opset}")
    schema: Any = defs.get_schema(node.op_type, opset, "")  # the type stubs lack the functions
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    else:
        versions = [v for v in schema.function_opset_versions if v <= opset]
    if not versions:
        raise _Refusal(f"ONNX has no body for it at opset {opset}")
    version = max(versions)
    for name, attribute in schema.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes[name] = ir.from_proto(attribute.default_value)
    if schema.has_context_dependent_function:
        types = [_type_of(value) for value in node.inputs]
        text = schema.get_context_dependent_function_with_opset_version(
            version, ir.to_proto(node).SerializeToString(), [t.SerializeToString() for t in types])
    else:
        text = schema.get_function_with_opset_version(version)
    proto = onnx.FunctionProto.FromString(text)
    made = {name for inner in proto.node for name in inner.output}
    while proto.output and proto.output[-1] not in made:  # an optional output that this node does not have
        proto.output.pop()
    for inner in proto.node:
        if defs.get_schema(inner.op_type, version, "").since_version != \
                defs.get_schema(inner.op_type, opset, "").since_version and inner.op_type not in EXPANDED:
            _same_meaning(inner.op_type, version, opset)
    proto.opset_import[0].version = opset
    function: ir.Function = ir.from_proto(proto)
    return function


def _same_meaning(op_type: str, version: int, opset: int) -> None:
    """Later versions of most operators only add dtypes. Those with other inputs or attributes are refused."""
    old, new = (defs.get_schema(op_type, v, "") for v in (version, opset))
    if [i.name for i in old.inputs] != [i.name for i in new.inputs][:len(old.inputs)] \
            or not set(old.attributes) <= set(new.attributes):
        raise _Refusal(f"its body is of opset {version}, and {op_type} is another one at opset {opset}")


def _type_of(value: ir.Value | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    if value.dtype is None:
        raise _Refusal(f"the element type of {value.name} is not known")
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return onnx.helper.make_tensor_type_proto(value.dtype.value, shape)
