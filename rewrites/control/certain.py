"""Nodes that cannot fail, whatever the values are: these may run where the original would not have run them.

A Loop of 0 steps runs nothing of its body. What is computed before it instead must not end in an error then.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tilegraph.rewrites.algebra.transposes import ELEMENTWISE
from tilegraph.rewrites.control.loops import elements
from tilegraph.rewrites.normalise.edit import constant_of, is_op
from tilegraph.rewrites.normalise.infer.info import Shape, shape_of
from tilegraph.spec.dims import Dim

_ONE = Dim.of(1)
_FREE = frozenset(("Identity", "Shape", "Size", "Transpose"))
_BY_CONSTANTS = frozenset(("Slice", "Squeeze", "Unsqueeze"))


def may_fail(node: ir.Node) -> str | None:
    """Why `node` may fail, or None if it cannot, random nodes and others without a rule here included.

    ReduceMax of nothing, Gather outside of a table and division by 0 of integers fail for what values or extents are;
    shapes that fit for certain do not.
    """
    what = f"{node.op_type} {node.name}"
    if node.domain != "" or any(a.is_ref() for a in node.attributes.values()):
        return f"{what} is no operator that is known not to fail"
    given = [v for v in node.inputs if v is not None]
    shapes = [shape_of(v.shape) for v in given]
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or any(d is None for s in known for d in s):
        return f"{what} reads a value of unknown shape"
    if any(v.dtype in (None, ir.DataType.STRING) for v in (*given, *node.outputs)):
        return f"{what} is of strings, or of an unknown type"
    if node.op_type in ELEMENTWISE:
        if is_op(node, "Div", "Mod") and not _floats(given[0]):
            return f"{what} may divide by 0"
        return None if _broadcast(known) else f"the operands of {what} do not broadcast for certain"
    if node.op_type in _FREE:
        return None
    if node.op_type in _BY_CONSTANTS:
        return _by_constants(node, what, known[0])
    if is_op(node, "MatMul", "Gemm"):
        return None if _multiplies(node, known) else f"the extents of {what} are not equal for certain"
    if is_op(node, "Concat"):
        axis = node.attributes["axis"].as_int()
        fits = len({len(s) for s in known}) == 1 and all(
            len({s[k] for s in known}) == 1 for k in range(len(known[0])) if k != axis % len(known[0]))
        return None if fits else f"the extents of {what} are not equal for certain"
    if is_op(node, "Reshape"):
        output = node.outputs[0]
        size, count = elements(given[0]), elements(output)
        fits = constant_of(given[1]) is not None and size is not None and size.is_static and size == count
        return None if fits else f"{what} goes to a shape that is not constant"
    return f"{what} is no operator that is known not to fail"


def _floats(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _broadcast(shapes: Sequence[Shape]) -> bool:
    """Whether the shapes broadcast for certain: extents of one axis are equal, or 1."""
    rank = max((len(s) for s in shapes), default=0)
    return all(len({s[len(s) - k] for s in shapes if len(s) >= k} - {_ONE}) <= 1 for k in range(1, rank + 1))


def _multiplies(node: ir.Node, shapes: Sequence[Shape]) -> bool:
    left, right = shapes[:2]
    if is_op(node, "MatMul"):
        return bool(left and right) and left[-1] == right[max(len(right) - 2, 0)] \
            and _broadcast([left[:-2], right[:-2]])
    if len(left) != 2 or len(right) != 2:
        return False
    flipped = ["transA" in node.attributes and bool(node.attributes["transA"].as_int()),
               "transB" in node.attributes and bool(node.attributes["transB"].as_int())]
    rows, depth = left[::-1] if flipped[0] else left
    inner, columns = right[::-1] if flipped[1] else right
    added = shapes[2] if len(shapes) > 2 else ()
    return depth == inner and len(added) <= 2 and all(
        d in (_ONE, e) for d, e in zip(added[::-1], (columns, rows), strict=False))


def _by_constants(node: ir.Node, what: str, shape: Shape) -> str | None:
    if any(v is not None and constant_of(v) is None for v in node.inputs[1:]):
        return f"{what} is told where by a value that is not constant"
    axes = ints_of(node, 1)
    if is_op(node, "Squeeze") and (axes is None or any(shape[a] != _ONE for a in axes)):
        return f"{what} leaves out extents that are not 1 for certain"
    if is_op(node, "Slice") and 0 in (ints_of(node, 4) or ()):
        return f"{what} has a step of 0"
    return None


def ints_of(node: ir.Node, index: int) -> list[int] | None:
    """The numbers of a constant operand; None if there is none."""
    tensor = constant_of(node.inputs[index]) if index < len(node.inputs) else None
    return None if tensor is None else [int(e) for e in tensor.numpy().reshape(-1)]
