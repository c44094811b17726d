"""Products of matrices written as Mul and ReduceSum: sum_d a[.., i, 1, d] b[.., 1, j, d] becomes a MatMul."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.ops.lower.base import constant_of
from tilegraph.rewrites.attention.respell.edit import Builder, Shape, Site, rename, take_over, whole


def sums_of_products(site: Site) -> bool:
    changed = False
    for node in site.products("ReduceSum"):
        changed = _rewrite(site, node) or changed
    return changed


def _rewrite(site: Site, node: ir.Node) -> bool:
    source = node.inputs[0]
    times = None if source is None else source.producer()
    if source is None or times is None or (times.domain, times.op_type) != ("", "Mul") or len(source.uses()) != 1 \
            or source.is_graph_output() or source.dtype != ir.DataType.FLOAT:
        return False
    a, b = times.inputs
    left, right = whole(a), whole(b)
    axes = _axes(node)
    if a is None or b is None or left is None or right is None or len(left) != len(right) or axes is None \
            or len(axes) != 1:
        return False
    rank = len(left)
    along = axes[0] % rank
    rows = [k for k in range(rank) if k != along and right[k] == 1 and left[k] != 1]
    columns = [k for k in range(rank) if k != along and left[k] == 1 and right[k] != 1]
    if not rows or not columns or left[along] != right[along] or left[along] == 1:
        return False
    if any(k not in rows and k not in columns and left[k] != right[k] for k in range(rank)):
        return False
    row, column = rows[-1], columns[-1]
    batch = [k for k in range(rank) if k not in (row, column, along)]
    build = Builder(site, node)
    one = _turned(build, a, left, column, [*batch, row, along])
    other = _turned(build, b, right, row, [*batch, along, column])
    extents = {k: left[k] if right[k] == 1 else right[k] for k in range(rank)}
    product = build.add("MatMul", [one, other], [extents[k] for k in (*batch, row, column)], source)
    made = [*batch, row, column]
    kept = [k for k in range(rank) if k != along]
    result = product
    if made != kept:
        perm = [made.index(k) for k in kept]
        result = build.add("Transpose", [product], [extents[k] for k in kept], source, perm=perm)
    if _keeps(node):
        shape = [extents[k] if k != along else 1 for k in range(rank)]
        result = build.add("Unsqueeze", [result, build.ints([along])], shape, source)
    take_over(node.outputs[0], result)
    build.put()
    site.graph.remove([node, times], safe=True)
    rename(product, node.name)
    return True


def _turned(build: Builder, value: ir.Value, shape: Shape, without: int, order: list[int]) -> ir.Value:
    """`value` without a dim of 1, its other dims in `order`."""
    kept = [k for k in range(len(shape)) if k != without]
    value = build.add("Squeeze", [value, build.ints([without])], [shape[k] for k in kept], value)
    if order == kept:
        return value
    return build.add("Transpose", [value], [shape[k] for k in order], value, perm=[kept.index(k) for k in order])


def _axes(node: ir.Node) -> list[int] | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant_of(node.inputs[1])
        return None if array is None else [int(k) for k in array.reshape(-1)]
    attribute = node.attributes.get("axes")
    return None if attribute is None else list(attribute.as_ints())


def _keeps(node: ir.Node) -> bool:
    attribute = node.attributes.get("keepdims")
    return attribute is None or attribute.as_int() == 1
