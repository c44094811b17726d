"""One softmax that weighs several values: they are put side by side, so that one product reads the weights.

Differential attention writes it this way: two halves of the values under the same weights.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.ops.attention import MAX_DEPTH
from tilegraph.rewrites.attention.respell.edit import Builder, Shape, Site, rename, whole
from tilegraph.spec.dims import Dim


def side_by_side(site: Site) -> bool:
    changed = False
    for core in site.cores():
        weights = core.second.inputs[core.weights]
        if core.second.graph is not site.graph or weights is None or core.weights != 0:
            continue
        products = [use.node for use in weights.uses()]
        if len(products) < 2 or weights.is_graph_output() or len(set(products)) != len(products):
            continue
        products.sort(key=list(site.graph).index)
        if all(p.graph is site.graph and p.op_type == "MatMul" and p.domain == "" and p.inputs[0] is weights
               and not p.outputs[0].is_graph_output() for p in products):
            changed |= _merge(site, weights, products)
    return changed


def _merge(site: Site, weights: ir.Value, products: list[ir.Node]) -> bool:
    values = [p.inputs[1] for p in products if p.inputs[1] is not None]
    shapes = [s for s in (whole(v) for v in values) if s is not None]
    results = [s for s in (whole(p.outputs[0]) for p in products) if s is not None]
    widths = [w for w in (s[-1].as_int() for s in shapes) if w is not None]
    if not len(widths) == len(results) == len(products) or len({s[:-1] for s in shapes}) != 1 \
            or sum(widths) > MAX_DEPTH or _depend(values, set(products)):
        return False
    b = Builder(site, products[0])
    total = Dim.of(sum(widths))
    beside = b.add("Concat", values, (*shapes[0][:-1], total), values[0], axis=len(shapes[0]) - 1)
    whole_shape: Shape = (*results[0][:-1], total)
    product = b.add("MatMul", [weights, beside], whole_shape, weights)
    parts = b.several("Split", [product, b.ints(widths)], results, weights, axis=len(whole_shape) - 1)
    for old, part in zip(products, parts, strict=True):
        old.outputs[0].replace_all_uses_with(part)
    b.put()
    site.graph.remove(products, safe=True)
    rename(product, products[0].name)
    _joined_again(site, product, parts)
    site.graph.sort()
    return True


def _depend(values: list[ir.Value], products: set[ir.Node]) -> bool:
    """Whether one of the values is made of another's product."""
    seen: set[ir.Node] = set()
    stack = [v.producer() for v in values]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if node in products:
            return True
        seen.add(node)
        stack.extend(v.producer() for v in node.inputs if v is not None)
    return False


def _joined_again(site: Site, product: ir.Value, parts: list[ir.Value]) -> None:
    """Parts that are transposed alike and concatenated again need no splitting."""
    transposes = [uses[0].node for p in parts if len(uses := list(p.uses())) == 1]
    if len(transposes) != len(parts) or any(t.op_type != "Transpose" for t in transposes):
        return
    perms = {tuple(a.as_ints()) if (a := t.attributes.get("perm")) is not None else () for t in transposes}
    perm = next(iter(perms))
    readers = {use.node for t in transposes for use in t.outputs[0].uses()}
    if len(perms) != 1 or len(readers) != 1 or not perm or perm[-1] != len(perm) - 1:
        return
    (concat,) = readers
    axis = concat.attributes.get("axis")
    out = concat.outputs[0]
    shape = whole(out)
    if concat.op_type != "Concat" or axis is None or axis.as_int() not in (-1, len(perm) - 1) or shape is None \
            or tuple(concat.inputs) != tuple(t.outputs[0] for t in transposes) or out.is_graph_output() \
            or any(t.outputs[0].is_graph_output() for t in transposes):
        return
    b = Builder(site, concat)
    result = b.add("Transpose", [product], shape, out, perm=list(perm))
    out.replace_all_uses_with(result)
    b.put()
    split = parts[0].producer()
    assert split is not None
    site.graph.remove([concat, *transposes, split], safe=True)
