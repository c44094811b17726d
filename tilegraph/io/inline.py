"""Inlining of model-local functions, except those of domain `ai.tilegraph` (they are fused ops)."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from tilegraph.errors import InputError
from tilegraph.io.convert import convert_nodes
from tilegraph.io.walk import values_of

FUSED_DOMAIN = "ai.tilegraph"


def inline_functions(model: ir.Model) -> bool:
    """Replaces every call of a function outside `ai.tilegraph` by its body, in place; unused functions go.

    A body written for another opset of the default domain is converted to the model's first, or the model to the
    body's when that is the newer one. Returns whether the model changed.
    Raises InputError: functions that call each other in a circle, opsets that cannot be reconciled, calls that the
    inliner cannot express.
    """
    chosen = [f for f in model.functions.values() if f.domain != FUSED_DOMAIN]
    if not chosen:
        return False
    _reconcile_opsets(model, chosen)
    for function in chosen:
        _prepare_body(function)
    try:
        InlinePass(criteria=lambda f: f.domain != FUSED_DOMAIN)(model)
    except Exception as error:
        cause = error.__cause__ or error
        raise InputError(f"the model's functions cannot be inlined: {cause}") from error
    for key in [k for k, f in model.functions.items() if f.domain != FUSED_DOMAIN]:
        del model.functions[key]
    return True


def _reconcile_opsets(model: ir.Model, functions: list[ir.Function]) -> None:
    imports = model.graph.opset_imports
    wanted = max([imports.get("", 0), *(f.opset_imports.get("", 0) for f in functions)])
    for function in model.functions.values():
        if "ai.onnx" in function.opset_imports:
            function.opset_imports[""] = function.opset_imports.pop("ai.onnx")
    if imports.get("", wanted) != wanted:
        reason = convert_nodes(model.graph, imports[""], wanted)
        if reason:
            raise InputError(
                f"a function of the model needs opset {wanted}, the model has {imports['']} and cannot be converted: "
                f"{reason}; export both with one opset"
            )
        imports[""] = wanted
    for function in functions:
        has = function.opset_imports.get("", wanted)
        if has != wanted:
            reason = convert_nodes(function.graph, has, wanted)
            if reason:
                raise InputError(
                    f"function '{function.name}' uses opset {has}, the model {wanted}, and cannot be converted: "
                    f"{reason}; export both with one opset"
                )
        if "" in function.opset_imports:
            function.opset_imports[""] = wanted
        for domain, version in function.opset_imports.items():
            if domain and imports.setdefault(domain, version) != version:
                if domain in {f.domain for f in functions}:
                    function.opset_imports[domain] = imports[domain]  # a function's own version selects nothing
                    continue
                raise InputError(
                    f"function '{function.name}' uses version {version} of domain '{domain}', the model "
                    f"{imports[domain]}; export both with one version"
                )


def _prepare_body(function: ir.Function) -> None:
    # Shapes in a body hold for one call at most, but ONNX Runtime wants to know the ranks of what goes into the bodies
    # of Scan and comes out of them. Outputs that are inputs, or that occur twice, would make the inliner rename the
    # caller's values.
    scans = [n.attributes["body"].as_graph() for n in function.all_nodes() if n.op_type == "Scan" and not n.domain]
    formal = {value for body in scans for value in (*body.inputs, *body.outputs)}
    for graph in (function.graph, *function.subgraphs()):
        for value in values_of(graph):
            if value.const_value is None:
                rank = len(value.shape) if value.shape is not None and value in formal else None
                value.shape = None if rank is None else ir.Shape([None] * rank)
    seen: set[ir.Value] = set()
    for index, output in enumerate(function.outputs):
        if output in seen or output.producer() is None:
            copy = ir.node("Identity", [output])
            copy.outputs[0].name = f"{output.name}_out{index}"
            function.append(copy)
            function.outputs[index] = copy.outputs[0]
        seen.add(output)
