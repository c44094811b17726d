"""The blocked layout in plain ONNX: what a composite's body begins and ends with.

A value [N, C, *spatial] in blocks of L channels is a tensor [N, ceil(C/L), *spatial, L]; lanes past C are zero where
`block` makes them, and read back by nobody. Both directions go through channels-last, because a Reshape can copy the
extents in front of the dim that it divides, so N and all spatial extents may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Views:
    """`nodes` in order, constants among them, that make `value`. They belong to no graph yet."""

    nodes: tuple[ir.Node, ...]
    value: ir.Value


def blocked_shape(shape: ir.Shape, lanes: int) -> ir.Shape:
    """[N, C, *spatial] -> [N, ceil(C/lanes), *spatial, lanes]; `ValueError` for unknown C or rank below 3."""
    channels = shape[1] if len(shape) >= 3 else None
    if not isinstance(channels, int):
        raise ValueError(f"{shape} has no channels whose number is known")
    return ir.Shape([shape[0], -(-channels // lanes), *shape[2:], lanes])


def block(value: ir.Value, lanes: int, name: str = "") -> Views:
    """`value` [N, C, *spatial] in blocks of `lanes` channels, filled up with zeros; C must be static.

    New values are called `name` (default: that of `value`) with a suffix.
    """
    assert value.shape is not None
    final = blocked_shape(value.shape, lanes)
    chain = _Chain(value, name or value.name or "value")
    channels, spatial = value.shape[1], list(value.shape[2:])
    rank = len(value.shape)
    assert isinstance(channels, int)
    missing = -channels % lanes
    if missing:
        ends = [missing if k == rank + 1 else 0 for k in range(2 * rank)]
        chain.add("Pad", [value.shape[0], channels + missing, *spatial], chain.constant(ends))
    whole = channels + missing
    chain.add("Transpose", [value.shape[0], *spatial, whole], perm=[0, *range(2, rank), 1])
    chain.add("Reshape", [value.shape[0], *spatial, whole // lanes, lanes],
              chain.constant([0] * (rank - 1) + [whole // lanes, lanes]))
    chain.add("Transpose", list(final), perm=[0, rank - 1, *range(1, rank - 1), rank])
    return chain.views()


def unblock(value: ir.Value, channels: int, name: str = "") -> Views:
    """The first `channels` channels of blocked `value` [N, ceil(C/L), *spatial, L] as [N, C, *spatial]."""
    assert value.shape is not None
    chain = _Chain(value, name or value.name or "value")
    rank = len(value.shape) - 1
    batch, blocks, *spatial, lanes = value.shape
    if not isinstance(blocks, int) or not isinstance(lanes, int) or not 0 <= blocks * lanes - channels < lanes:
        raise ValueError(f"{value.name}: {value.shape} is no blocked form of {channels} channels")
    chain.add("Transpose", [batch, *spatial, blocks, lanes], perm=[0, *range(2, rank), 1, rank])
    chain.add("Reshape", [batch, *spatial, blocks * lanes], chain.constant([0] * (rank - 1) + [blocks * lanes]))
    chain.add("Transpose", [batch, blocks * lanes, *spatial], perm=[0, rank - 1, *range(1, rank - 1)])
    if channels != blocks * lanes:
        chain.add("Slice", [batch, channels, *spatial], chain.constant([0]), chain.constant([channels]),
                  chain.constant([1]))
    return chain.views()


def block_constant(array: Array, lanes: int, spatial: int) -> Array:
    """Numbers by channel, [C] or [C, 1, ...] or [1, C, 1, ...], as [ceil(C/L), 1, ..., L] that broadcasts to a blocked
    value with `spatial` spatial dims; lanes past C are zero."""
    flat = array.reshape(-1)
    made = np.zeros((-(-flat.size // lanes), lanes), array.dtype)
    made.reshape(-1)[:flat.size] = flat
    return made.reshape(-1, *(1,) * spatial, lanes)


class _Chain:
    """Nodes one after the other, each on the result of the one before."""

    def __init__(self, value: ir.Value, name: str) -> None:
        self.value, self.name, self.dtype = value, name, value.dtype
        self.nodes: list[ir.Node] = []

    def constant(self, numbers: Sequence[int]) -> ir.Value:
        tensor = ir.tensor(np.asarray(numbers, np.int64))
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
        self._named(node, ir.Shape([len(numbers)]), ir.DataType.INT64)
        return node.outputs[0]

    def add(self, op: str, shape: Sequence[Any], *more: ir.Value, perm: Sequence[int] | None = None) -> None:
        attributes = [] if perm is None else [ir.AttrInt64s("perm", list(perm))]
        node = ir.Node("", op, [self.value, *more], attributes)
        self._named(node, ir.Shape(shape), self.dtype)
        self.value = node.outputs[0]

    def _named(self, node: ir.Node, shape: ir.Shape, dtype: ir.DataType | None) -> None:
        node.name = f"{self.name}_layout{len(self.nodes)}"
        out = node.outputs[0]
        out.name, out.shape = node.name, shape
        out.type = None if dtype is None else ir.TensorType(dtype)
        self.nodes.append(node)

    def views(self) -> Views:
        return Views(tuple(self.nodes), self.value)
