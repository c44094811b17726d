"""Biases that are added while the keys are laid out in two dims: they are put together outside and laid out as scores.

Relative positions along the height and along the width of an image (SAM, ViTDet, MViT) are added to scores that are
reshaped to [.., height, width] of the keys and back.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.ops.broadcast import broadcast
from tilegraph.ops.prims import Decline
from tilegraph.rewrites.attention.find import Core
from tilegraph.rewrites.attention.respell.edit import Builder, Site, whole


def beside_views(site: Site) -> bool:
    changed = False
    for core in site.cores():
        for one in (core, *core.others):
            for reshape in [n for n in one.between if n.op_type == "Reshape" and n.graph is site.graph]:
                changed = _rewrite(site, one, reshape) or changed
    return changed


def _rewrite(site: Site, core: Core, before: ir.Node) -> bool:
    scores, laid = whole(before.inputs[0]), whole(before.outputs[0])
    if scores is None or laid is None or scores[-1] == laid[-1] or before.inputs[0] is None:
        return False
    chain = list(_sums(before))
    if not chain:
        return False
    last = chain[-1][0]
    back = _only_user(last.outputs[0])
    if back is None or back.op_type != "Reshape" or whole(back.outputs[0]) != scores \
            or back.outputs[0].is_graph_output():
        return False
    target = back.inputs[1]
    terms = [term for _, term in chain]
    shapes = [s for s in (whole(t) for t in terms) if s is not None]
    sizes = [d.as_int() for d in laid]
    if target is None or len(shapes) != len(terms) or any(t.producer() in core.between for t in terms):
        return False
    try:
        common = broadcast(shapes)
    except Decline:
        return False
    if common != laid and any(s is None for s in sizes):
        return False
    b = Builder(site, back)
    bias = terms[0]
    for k in range(1, len(terms)):
        bias = b.add("Add", [bias, terms[k]], broadcast(shapes[:k + 1]), terms[0])
    if common != laid:
        bias = b.add("Expand", [bias, b.ints([s for s in sizes if s is not None])], laid, terms[0])
    flat = b.add("Reshape", [bias, target], scores, terms[0], **_attributes(back))
    result = b.add("Add", [before.inputs[0], flat], scores, terms[0])
    back.outputs[0].replace_all_uses_with(result)
    b.put()
    site.graph.remove(list(reversed([before, *(node for node, _ in chain), back])), safe=True)
    return True


def _sums(before: ir.Node) -> Iterator[tuple[ir.Node, ir.Value]]:
    """The Adds behind `before` and what each of them adds."""
    value = before.outputs[0]
    while True:
        node = _only_user(value)
        if node is None or node.op_type != "Add" or node.domain != "":
            return
        term = next((v for v in node.inputs if v is not value), None)
        if term is None:
            return
        yield node, term
        value = node.outputs[0]


def _only_user(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _attributes(node: ir.Node) -> dict[str, int]:
    return {name: a.as_int() for name, a in node.attributes.items()}
