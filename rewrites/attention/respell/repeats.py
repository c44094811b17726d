"""Heads that are repeated by concatenating a value with itself: Expand or Tile, which are views."""

from __future__ import annotations

from tilegraph.rewrites.attention.respell.edit import Builder, Site, whole


def repeated(site: Site) -> bool:
    """Everywhere: an Expand costs ONNX Runtime what the Concat does."""
    changed = False
    for node in [n for n in site.graph if n.op_type == "Concat" and n.domain == ""]:
        value, out = node.inputs[0], node.outputs[0]
        shape, made = whole(value), whole(out)
        if value is None or shape is None or made is None or len(node.inputs) < 2 or out.is_graph_output() \
                or any(v is not value for v in node.inputs) or value.const_value is not None or len(shape) < 3:
            continue
        axis = node.attributes["axis"].as_int() % len(shape)
        sizes = [len(node.inputs) if k == axis else 1 for k in range(len(shape))]
        b = Builder(site, node)
        result = b.add("Expand" if shape[axis] == 1 else "Tile", [value, b.ints(sizes)], made, out)
        out.replace_all_uses_with(result)
        b.put()
        site.graph.remove(node, safe=True)
        changed = True
    return changed
