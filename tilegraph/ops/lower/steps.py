"""Quotients that something rounds or compares: where the last bit of x / c moves the result by a whole step.

Kernels divide by constants and by values of a row through reciprocals, which is one ulp off now and then: 41 * (1 / 41)
is less than 1, and its floor 0.
"""

from __future__ import annotations

import onnx_ir as ir

_STEPS = frozenset({"Floor", "Ceil", "Round", "Mod", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal",
                    "QuantizeLinear"})
_MOVES = frozenset({"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Gather", "Flatten",
                    "Neg", "Abs", "Clip", "Min", "Max"})
_SUMS = frozenset({"Add", "Sub", "Mul"})  # x / c + 0.5 is a number to round, too
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_MOST = 32  # nodes


def steps_follow(node: ir.Node) -> bool:
    """Whether a result of `node` is rounded or compared, as it is or moved, bounded, or changed by one number."""
    seen = {node}
    queue = [node]
    for one in queue:
        for use in (use for value in one.outputs for use in value.uses()):
            reader = use.node
            if reader.domain not in ("", "ai.onnx") or reader in seen or len(seen) > _MOST:
                continue
            if reader.op_type in _STEPS or (reader.op_type == "Cast" and reader.outputs[0].dtype not in _FLOATS):
                return True
            if reader.op_type in _MOVES or reader.op_type == "Cast" or (reader.op_type in _SUMS and _by_one(reader)):
                seen.add(reader)
                queue.append(reader)
    return False


def _by_one(node: ir.Node) -> bool:
    """Whether one of its operands is a number."""
    return any(v is not None and v.const_value is not None and v.const_value.size == 1 for v in node.inputs)
