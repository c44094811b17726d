"""A product of [x_i, h] and a constant matrix is taken apart, so that the part of x_i needs no state.

    Concat(a, b) [A; B]  =  a A + b B            rows of the matrix are those of the parts

by the definition of the product: the same products, added in another order. Cells of TensorFlow, and many that are
written by hand, join input and state before one matrix; then nothing of it can be computed before the loop.

Handles: MatMul and Gemm of a Concat along the last axis with a constant matrix of float32 or float64, which is cut at
compile time; parts of a step, of the state, and what is the same in each step, in any order and number.

Refused: half types, in which every sum is rounded to few bits; Gemm with factors or a transposed left operand; parts of
unknown extents; matrices of which a copy would exceed the folding limit (memory-mapped ones count in full).
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.algebra.constants import Array, Constants, floats
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.control.certain import may_fail
from tilegraph.rewrites.control.over_time import Clock, Steps
from tilegraph.rewrites.normalise.edit import is_op, is_used, remove
from tilegraph.rewrites.normalise.infer.info import shape_of

_STATE, _SAME = "state", "same"  # what is no step: what depends on the state, and what is the same in each step
_NEUTRAL = {"alpha": 1.0, "beta": 1.0, "transA": 0}


def take_apart(steps: Steps, constants: Constants) -> tuple[list[ir.Node], list[tuple[ir.Node, str]]]:
    """Takes products of the body apart; returns the products that went, and those that stay with the reasons."""
    gone, refused = [], []
    for node in list(steps.body):
        joined = node.inputs[0].producer() if is_op(node, "MatMul", "Gemm") and node.inputs[0] is not None else None
        if joined is None or joined.graph is not steps.body or not is_op(joined, "Concat"):
            continue
        groups = _groups(joined, steps)
        if len(groups) < 2 or set(groups) == {_STATE}:
            continue
        try:
            _Product(node, joined, groups, steps, constants).rewrite()
        except Decline as reason:
            refused.append((node, reason.reason))
            continue
        gone.append(node)
    return gone, refused


def _groups(joined: ir.Node, steps: Steps) -> dict[Hashable, list[int]]:
    """Places of the operands that can be multiplied together: of one step, of the state, or always the same."""
    groups: dict[Hashable, list[int]] = {}
    for place, value in enumerate(joined.inputs):
        key: Clock | str = _SAME
        if value is not None and value in steps.inside:
            key = steps.clocks.get(value, _STATE)
        groups.setdefault(key, []).append(place)
    return groups


class _Product:
    """MatMul or Gemm `node` of the Concat `joined`. Raises Decline with the reason where it stays whole."""

    def __init__(self, node: ir.Node, joined: ir.Node, groups: dict[Hashable, list[int]], steps: Steps,
                 constants: Constants) -> None:
        self.node, self.joined, self.groups, self.constants = node, joined, groups, constants
        self.build = Build(node, constants.names, steps.build.opset)
        reason = may_fail(joined) or may_fail(node) or next(
            (why for key in groups if isinstance(key, Clock) and (why := steps.too_large(node.outputs[0], key))), None)
        if reason is not None:
            raise Decline(reason)
        shapes = [shape_of(v.shape) or () for v in joined.inputs if v is not None]
        if joined.attributes["axis"].as_int() % len(shapes[0]) != len(shapes[0]) - 1:
            raise Decline("its operand is joined along another axis than the last")
        extents = [None if s[-1] is None else s[-1].as_int() for s in shapes]
        if any(e is None for e in extents):
            raise Decline("the extents of what is joined are not known")
        ends = np.cumsum([0, *(e or 0 for e in extents)])
        self.rows = [np.arange(a, b) for a, b in pairwise(ends)]
        self.matrix = self._matrix()

    def _matrix(self) -> Array:
        """[I, G]. A copy of it takes its place."""
        node = self.node
        if any(self.build.attr(name, neutral) != neutral for name, neutral in _NEUTRAL.items()):
            raise Decline("it has factors, or transposes its first operand")
        matrix, old = floats(node.inputs[1]), node.inputs[1]
        if matrix is None or old is None or matrix.ndim != 2:
            raise Decline("its second operand is no constant matrix of float32 or float64")
        reason = self.constants.refusal(node, old, int(matrix.size * _itemsize(old)))
        if reason is not None:
            raise Decline(reason)
        return matrix.T if self.build.attr("transB", 0) else matrix

    def rewrite(self) -> None:
        b, node = self.build, self.node
        old, added = node.inputs[1], b.input(2)
        assert old is not None
        assert old.dtype is not None
        total: ir.Value | None = None
        # What can leave the body comes first in the sum, the bias with it.
        for first, key in enumerate(sorted(self.groups, key=lambda k: (k == _STATE, k != _SAME))):
            places = self.groups[key]
            rows = self.matrix[np.concatenate([self.rows[k] for k in places])]
            if first == 0:
                self.constants.replace(node, 1, rows, old.dtype)
                part = node.inputs[1]
            else:
                part = self.constants.make(f"{old.name}_rows", rows, old.dtype)
            given = [v for k in places if (v := self.joined.inputs[k]) is not None]
            product = b.op("MatMul", given[0] if len(given) == 1 else b.op("Concat", *given, axis=-1), part)
            total = product if total is None else b.op("Add", total, product)
            if first == 0 and added is not None:
                total = b.op("Add", total, added)
        b.finish([total], self.constants.model.graph, owned=False)
        if not is_used(self.joined.outputs[0]):
            remove(self.joined)


def _itemsize(value: ir.Value) -> float:
    assert value.dtype is not None
    return value.dtype.itemsize
