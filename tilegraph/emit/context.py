"""The attributes of EPContext nodes: how the serving side finds the library and the manifest.

Source: ONNX Runtime's "EP context design" and the com.microsoft EPContext operator. docs/serving.md says what each
attribute holds.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from tilegraph.errors import InternalError
from tilegraph.spec.artifact import EP_NAME, MANIFEST_FILE, Library, Manifest

CONTEXT_DOMAIN = "com.microsoft"
OP_TYPE = "EPContext"
OPSET_VERSION = 1


def is_ours(node: ir.Node) -> bool:
    """Whether this EPContext node is for tilegraph's execution provider (a model may hold another one's)."""
    if node.op_type != OP_TYPE or node.domain != CONTEXT_DOMAIN:
        return False
    source = node.attributes.get("source")
    return source is not None and source.type == ir.AttributeType.STRING and source.as_string() == EP_NAME


def initial_attributes(partition: str) -> list[ir.Attr]:
    """What a new node says before it is written."""
    return [ir.AttrString("source", EP_NAME), ir.AttrString("partition_name", partition),
            ir.AttrInt64("main_context", 1), ir.AttrInt64("embed_mode", 0)]


def context_nodes(model: ir.Model) -> Iterator[list[ir.Node]]:
    """Our nodes of each graph that has any, the main graph first, in the order of its nodes."""
    for graph in (model.graph, *model.graph.subgraphs()):
        found = [node for node in graph if is_ours(node)]
        if found:
            yield found


def architecture(library: Library) -> str:
    """The instruction set as one string, such as x86-64-v4+avx512bf16."""
    return "+".join((library.isa, *library.features))


def bind_to_folder(model: ir.Model, manifest: Manifest, manifest_bytes: bytes) -> None:
    """Points every EPContext node at the library and the manifest beside the model. In place."""
    notes = {"manifest": MANIFEST_FILE, "manifest_sha256": hashlib.sha256(manifest_bytes).hexdigest(),
             "library_sha256": manifest.library.sha256}
    _check_names(model, manifest)
    for nodes in context_nodes(model):
        for node in nodes:
            _set(node, manifest, main=True, embed=False, cache=manifest.library.file, notes=notes)


def bind_embedded(model: ir.Model, manifest: Manifest, library: bytes) -> None:
    """Puts the library and the manifest into the first EPContext node of each graph. In place.

    Each graph needs its own: an execution provider sees one graph at a time.
    """
    notes = {"manifest": manifest.to_json(), "library_sha256": manifest.library.sha256}
    text = base64.b64encode(library).decode("ascii")
    _check_names(model, manifest)
    for nodes in context_nodes(model):
        _set(nodes[0], manifest, main=True, embed=True, cache=text, notes=notes)
        for node in nodes[1:]:
            _set(node, manifest, main=False, embed=True, cache="", notes={})


def _check_names(model: ir.Model, manifest: Manifest) -> None:
    """Every node has its program, and every program its node."""
    named = {n.attributes["partition_name"].as_string() for nodes in context_nodes(model) for n in nodes}
    if named != set(manifest.programs):
        odd = ", ".join(sorted(named ^ set(manifest.programs))[:5])
        raise InternalError(f"the model and the manifest disagree about the partitions {odd}")


def _set(node: ir.Node, manifest: Manifest, *, main: bool, embed: bool, cache: str,
         notes: Mapping[str, object]) -> None:
    values = [ir.AttrInt64("main_context", int(main)), ir.AttrInt64("embed_mode", int(embed)),
              ir.AttrString("ep_cache_context", cache),
              ir.AttrString("hardware_architecture", architecture(manifest.library)),
              ir.AttrString("ep_sdk_version", manifest.tools.get("tilegraph", "")),
              ir.AttrString("notes", json.dumps(notes, ensure_ascii=False, allow_nan=False))]
    for value in values:
        node.attributes[value.name] = value
