"""Products of attention written as Gemm: a single head in two dims, the scale as `alpha`, a mask as `C`."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.edit import Builder, Site, rename, swap, swapped, take_over, whole


def gemms_as_products(site: Site) -> bool:
    """alpha A B + beta C as its nodes, where neither A nor B is a weight."""
    changed = False
    for node in site.products("Gemm"):
        changed = _rewrite(site, node) or changed
    return changed


def _rewrite(site: Site, node: ir.Node) -> bool:
    a, b = node.inputs[:2]
    added = node.inputs[2] if len(node.inputs) > 2 else None
    out = node.outputs[0]
    left, right, made = whole(a), whole(b), whole(out)
    if a is None or b is None or left is None or right is None or made is None \
            or out.dtype != ir.DataType.FLOAT or any(constant_of(v) is not None for v in (a, b)):
        return False
    build = Builder(site, node)
    if _number(node, "transA", 0):
        a = build.add("Transpose", [a], swapped(left), a, perm=swap(2))
    if _number(node, "transB", 0):
        b = build.add("Transpose", [b], swapped(right), b, perm=swap(2))
    product = result = build.add("MatMul", [a, b], made, out)
    if (alpha := _number(node, "alpha", 1)) != 1:
        result = build.add("Mul", [result, build.scalar(alpha)], made, out)
    beta, shape = _number(node, "beta", 1), whole(added)
    if added is not None and beta != 0:
        if beta != 1 and shape is not None:
            added = build.add("Mul", [added, build.scalar(beta)], shape, out)
        elif beta != 1:
            return False
        result = build.add("Add", [result, added], made, out)
    take_over(out, result)
    build.put()
    site.graph.remove(node, safe=True)
    rename(product, node.name)
    return True


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)
