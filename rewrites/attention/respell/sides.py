"""Weights as the right operand of their product: V W becomes (W' V')', and an Einsum's operands change places."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.rewrites.attention.respell.edit import Builder, Site, rename, swap, swapped, take_over, whole


def weights_first(site: Site) -> bool:
    changed = False
    for core in site.cores():
        if core.weights != 1:
            continue
        node = core.second
        values, weights = node.inputs
        out = node.outputs[0]
        shapes = [whole(v) for v in (values, weights, out)]
        if node.op_type == "Einsum":
            changed |= _exchange(node)
        elif values is not None and weights is not None:
            v, w, o = shapes
            if v is None or w is None or o is None or len(v) < 2 or len(w) < 2:
                continue
            b = Builder(site, node)
            left = b.add("Transpose", [weights], swapped(w), weights, perm=swap(len(w)))
            right = b.add("Transpose", [values], swapped(v), values, perm=swap(len(v)))
            product = b.add("MatMul", [left, right], swapped(o), out)
            result = b.add("Transpose", [product], o, out, perm=swap(len(o)))
            take_over(out, result)
            b.put()
            site.graph.remove(node, safe=True)
            rename(product, node.name)
            changed = True
    return changed


def _exchange(node: ir.Node) -> bool:
    equation = node.attributes["equation"].as_string()
    terms, arrow, out = equation.partition("->")
    one, comma, other = terms.partition(",")
    if not comma or not arrow or "," in other:
        return False
    left, right = node.inputs
    node.replace_input_with(0, right)
    node.replace_input_with(1, left)
    node.attributes["equation"] = ir.AttrString("equation", f"{other},{one}->{out}")
    return True
