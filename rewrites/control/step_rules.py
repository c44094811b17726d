"""Operators of a body that can be computed for all steps at once, and how.

A rule takes values of a step to all steps of them: the steps become the first axis, so an operator that takes each step
by itself takes each row of that axis by itself. Everything else of its operands is the same in all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from tilegraph.rewrites.algebra.transposes import ELEMENTWISE, perm_of
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.control.certain import ints_of
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.infer.info import shape_of

_ALLOWZERO = 14  # the opset from which a Reshape can be told an extent of 0


class Steps(Protocol):
    """What a rule sees of the loop. `clocks`: the values that differ from step to step and need no state."""

    build: Build

    @property
    def clocks(self) -> Container[ir.Value | None]: ...

    def operand(self, value: ir.Value) -> ir.Value:
        """All steps of `value`, [T, *shape]; itself if it is the same in all of them."""
        ...


@dataclass(frozen=True)
class Rule:
    """`refusal`: why a node with shapes that fit cannot be computed for all steps. `write`: computes it for them."""

    write: Callable[[Steps, ir.Node], ir.Value]
    refusal: Callable[[Steps, ir.Node], str | None] = lambda _steps, _node: None


def rule_of(node: ir.Node) -> Rule | None:
    if node.domain != "":
        return None
    return _ELEMENTWISE if node.op_type in ELEMENTWISE else _RULES.get(node.op_type)


def _rank(value: ir.Value | None) -> int:
    assert value is not None
    assert value.shape is not None
    return len(value.shape)


def _operand(steps: Steps, node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return steps.operand(value)


def _operands(steps: Steps, node: ir.Node) -> list[ir.Value | None]:
    return [None if v is None else steps.operand(v) for v in node.inputs]


def _same(steps: Steps, node: ir.Node, *operands: ir.Value | None, **changed: Any) -> ir.Value:
    """The operator of `node`, with its attributes but for those that are `changed`."""
    given = {a.name: a.value for a in node.attributes.values()}
    return steps.build.op(node.op_type, *operands, **{**given, **changed})


def _elementwise(steps: Steps, node: ir.Node) -> ir.Value:
    """Captured operands broadcast from the right as before; steps of a lower rank get extents of 1 behind the first."""
    rank = _rank(node.outputs[0])
    operands = []
    for value in node.inputs:
        operand = None if value is None else steps.operand(value)
        missing = rank - _rank(value) if value in steps.clocks else 0
        if missing:
            operand = steps.build.op("Unsqueeze", operand, steps.build.ints(*range(1, missing + 1)))
        operands.append(operand)
    return _same(steps, node, *operands)


def _elementwise_refusal(steps: Steps, node: ir.Node) -> str | None:
    if is_op(node, "Clip") and any(v in steps.clocks for v in node.inputs[1:]):
        return f"the limits of {node.op_type} {node.name} differ from step to step"
    return None


def _matmul(steps: Steps, node: ir.Node) -> ir.Value:
    return _same(steps, node, *_operands(steps, node))


def _matmul_refusal(steps: Steps, node: ir.Node) -> str | None:
    if node.inputs[1] in steps.clocks or _rank(node.inputs[1]) != 2:
        return f"the second factor of MatMul {node.name} is no captured matrix"
    return None


def _gemm(steps: Steps, node: ir.Node) -> ir.Value:
    """A Gemm of all rows of all steps: [T, B, I] -> [T B, I] -> [T B, G] -> [T, B, G]."""
    b, x = steps.build, _operand(steps, node, 0)
    rows, columns, depth = _gemm_extents(node)
    flat = _same(steps, node, b.reshape(x, -1, depth), *_operands(steps, node)[1:])
    if rows is not None:
        return b.reshape(flat, -1, rows, columns)
    return b.op("Reshape", flat, b.vector(b.extent(x, 0), b.extent(x, 1), columns), allowzero=1)


def _gemm_extents(node: ir.Node) -> tuple[int | None, int, int]:
    """Rows of a step if known, columns, depth; 0 for one that is not known."""
    out, given = (shape_of(v.shape) for v in (node.outputs[0], node.inputs[0]) if v is not None)
    rows, columns, depth = (None if s is None or s[k] is None else s[k].as_int()  # type: ignore[union-attr]
                            for s, k in ((out, 0), (out, 1), (given, 1)))
    return rows or None, columns or 0, depth or 0


def _gemm_refusal(steps: Steps, node: ir.Node) -> str | None:
    what = f"Gemm {node.name}"
    if node.inputs[0] not in steps.clocks or any(v in steps.clocks for v in node.inputs[1:]):
        return f"not only the first operand of {what} is of the step"
    if "transA" in node.attributes and node.attributes["transA"].as_int():
        return f"{what} transposes the step"
    added = node.inputs[2] if len(node.inputs) > 2 else None
    if added is not None and added.shape is not None and len(added.shape) == 2 and added.shape[0] != 1:
        return f"what {what} adds differs from row to row"
    rows, columns, depth = _gemm_extents(node)
    if not columns or not depth:
        return f"the matrix of {what} has extents that are not known"
    if rows is None and steps.build.opset < _ALLOWZERO:
        return f"the number of rows of {what} is not known, and below opset {_ALLOWZERO} no Reshape can spell 0"
    return None


def _axes(steps: Steps, node: ir.Node) -> ir.Value:
    """Squeeze and Unsqueeze."""
    rank = _rank(node.outputs[0] if is_op(node, "Unsqueeze") else node.inputs[0])
    axes = ints_of(node, 1) or []
    return steps.build.op(node.op_type, _operand(steps, node, 0), steps.build.ints(*(a % rank + 1 for a in axes)))


def _transpose(steps: Steps, node: ir.Node) -> ir.Value:
    return steps.build.op("Transpose", _operand(steps, node, 0), perm=[0, *(p + 1 for p in perm_of(node) or ())])


def _concat(steps: Steps, node: ir.Node) -> ir.Value:
    axis = node.attributes["axis"].as_int() % _rank(node.outputs[0]) + 1
    return steps.build.op("Concat", *_operands(steps, node), axis=axis)


def _concat_refusal(steps: Steps, node: ir.Node) -> str | None:
    return None if all(v in steps.clocks for v in node.inputs) else \
        f"Concat {node.name} reads something that is the same in all steps"


def _reshape(steps: Steps, node: ir.Node) -> ir.Value:
    shape = shape_of(node.outputs[0].shape) or ()
    return steps.build.reshape(_operand(steps, node, 0), -1, *(d.value for d in shape if d is not None))


def _reshape_refusal(_steps: Steps, node: ir.Node) -> str | None:
    shape = shape_of(node.outputs[0].shape) or ()
    known = all(d is not None and d.is_static and d.value > 0 for d in shape)
    return None if known else f"Reshape {node.name} goes to a shape that is not known, or empty"


_ELEMENTWISE = Rule(_elementwise, _elementwise_refusal)
_RULES = {
    "MatMul": Rule(_matmul, _matmul_refusal), "Gemm": Rule(_gemm, _gemm_refusal), "Squeeze": Rule(_axes),
    "Unsqueeze": Rule(_axes), "Transpose": Rule(_transpose), "Concat": Rule(_concat, _concat_refusal),
    "Reshape": Rule(_reshape, _reshape_refusal), "Identity": Rule(_elementwise)}
