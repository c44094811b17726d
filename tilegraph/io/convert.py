"""Opset conversion, upward only, and only where every op in the model keeps its meaning.

A node needs work when its op has a new definition between the two opsets. Most new definitions only add element types
or optional inputs and attributes; `_same_form` recognises those from the schemas. The others are in
`convert_ops.ADAPTERS` (rewritten here) or are refused, with the reason, before anything changes. onnx's own converter
is not used: it needs the weights in the model and stops at ops and subgraphs that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import onnx
import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.io.check import MAX_OPSET, OF_RUNTIME
from tilegraph.io.convert_ops import ADAPTERS, REFUSED, Refusal
from tilegraph.io.names import fix_names
from tilegraph.io.walk import subgraphs_of

STAGE = "opset"


def to_opset(model: ir.Model, version: int, diagnostics: Diagnostics | None = None) -> bool:
    """Raises the model's default opset to `version` in place, if that is safe. Returns whether the model changed.

    Where it is not, the model stays as it is, and a refused Decision of stage "opset" names the node and the reason.
    A model that is at `version` or beyond, or uses no default opset, stays as it is too. Functions of the model are
    converted with it or not at all. Raises ValueError for a version that onnx does not know.
    """
    if not 1 <= version <= MAX_OPSET:
        raise ValueError(f"opset {version} is unknown; the newest is {MAX_OPSET}")
    log = diagnostics or Diagnostics()
    current = model.graph.opset_imports.get("")
    if current is None or current >= version:
        return False
    scopes: list[tuple[ir.Graph | ir.Function, int]] = [(model.graph, current)]
    for function in model.functions.values():
        if "" in function.opset_imports:
            scopes.append((function, function.opset_imports[""]))
    for scope, has in scopes:
        refusal = first_refusal(scope, has, version)
        if refusal:
            node, reason = refusal
            log.refused(STAGE, node.name or "", f"opset {current} kept: {reason}", op=node.op_type)
            return False
    for scope, has in scopes:
        convert_nodes(scope, has, version)
        scope.opset_imports[""] = max(has, version)
    model.ir_version = max(model.ir_version, _ir_version_of(version))
    fix_names(model)
    log.took(STAGE, model.graph.name or "model", f"converted from opset {current} to {version}")
    return True


def convert_nodes(scope: ir.Graph | ir.Function, current: int, version: int) -> str:
    """Rewrites the default-domain nodes of `scope`, subgraphs included. Returns why not, or "" when it is done.

    All or nothing. The scope's opset import is left to the caller.
    """
    refusal = first_refusal(scope, current, version)
    if refusal:
        node, reason = refusal
        return f"node '{node.name}' ({node.op_type}): {reason}"
    for node in list(_nodes(scope)):
        reached = current
        while steps := _steps(node.op_type, reached, version):  # an adapter may change the op
            reached = steps[0]
            adapter = ADAPTERS.get((node.op_type, reached))
            if adapter is not None:
                adapter(node, reached, True)
    return ""


def first_refusal(scope: ir.Graph | ir.Function, current: int, version: int) -> tuple[ir.Node, str] | None:
    """The first node of `scope`, subgraphs included, that cannot be converted, with the reason."""
    if version < current:
        nodes = iter(_nodes(scope))
        first = next(nodes, None)
        return (first, f"opset {current} is newer than {version}") if first is not None else None
    for node in _nodes(scope):
        own = OF_RUNTIME.get(node.op_type, 0)
        if current < own <= version and (node.op_type, own) not in ADAPTERS:
            return node, f"before opset {own} it is an operator of ONNX Runtime's own"
        for step in _steps(node.op_type, current, version):
            try:
                _check(node, step)
            except Refusal as refusal:
                return node, str(refusal)
    return None


def _check(node: ir.Node, step: int) -> None:
    key = (node.op_type, step)
    if any(a.is_ref() for a in node.attributes.values()) and key in ADAPTERS:
        raise Refusal("an attribute is a parameter of the function")
    if key in ADAPTERS:
        ADAPTERS[key](node, step, False)
    elif key in REFUSED:
        raise Refusal(REFUSED[key])
    elif not _same_form(node.op_type, step):
        raise Refusal(f"its definition changed in opset {step}")


def _nodes(scope: ir.Graph | ir.Function) -> Iterator[ir.Node]:
    for node in scope:
        if node.domain == "":
            yield node
        for inner in subgraphs_of(node):
            yield from _nodes(inner)


@lru_cache(maxsize=4096)
def _steps(op: str, current: int, version: int) -> tuple[int, ...]:
    """The opsets in (current, version] that define `op` anew."""
    return tuple(v for v in _history().get(op, ()) if current < v <= version)


@lru_cache(maxsize=1)
def _history() -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, set()).add(schema.since_version)
    return {op: tuple(sorted(versions)) for op, versions in found.items()}


@lru_cache(maxsize=4096)
def _same_form(op: str, step: int) -> bool:
    """Whether the definition at `step` takes every node of the one before it, and only adds optional things."""
    new = onnx.defs.get_schema(op, step, "")
    old = onnx.defs.get_schema(op, step - 1, "")
    if new.deprecated:
        return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Single
    same_inputs = len(old.inputs) <= len(new.inputs) and all(
        a.option == b.option or b.option != optional for a, b in zip(old.inputs, new.inputs, strict=False)
    )
    added_inputs = all(i.option != optional for i in new.inputs[len(old.inputs):])
    kept_attributes = all(
        name in new.attributes
        and (a.required or (_default(a) == _default(new.attributes[name]) and not new.attributes[name].required))
        for name, a in old.attributes.items()
    )
    added_attributes = all(not a.required for name, a in new.attributes.items() if name not in old.attributes)
    return same_inputs and added_inputs and kept_attributes and added_attributes


def _default(attribute: onnx.defs.OpSchema.Attribute) -> bytes:
    return bytes(attribute.default_value.SerializeToString())


def _ir_version_of(opset: int) -> int:
    found = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True)
    return int(found)
