"""How many steps a Loop or a Scan takes, where no input of the model has a say in it.

ONNX's Loop, as ONNX Runtime runs it:  k = 0;  while k < M and c:  c, state = body(k, c, state);  k = k + 1
with M without bound and c true where they are left out. So M = 1 needs no c after the first step, M <= 0 nothing, and a
c that follows from k, from itself and from carried values that start as constants is computed here, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.ops.prims import Decline
from tilegraph.rewrites.control.loops import body_of
from tilegraph.rewrites.normalise.edit import constant_of
from tilegraph.rewrites.normalise.evaluate import CannotEvaluate, evaluable, evaluate
from tilegraph.rewrites.normalise.infer.info import shape_of, static_sizes
from tilegraph.rewrites.normalise.shapes import known_contents, known_integer

Array = npt.NDArray[Any]

_ELEMENTS = 256  # of a tensor that decides whether a loop goes on; more decide nothing in practice


def loop_steps(node: ir.Node, opset: int, most: int) -> int:
    """The number of steps of a Loop. Raises Decline where an input decides it, or where it exceeds `most`."""
    limit, first = (*node.inputs[:2], None, None)[:2]
    count = None if limit is None else known_integer(limit)
    if limit is not None and count is None:
        raise Decline("the number of its steps depends on the inputs")
    if count is not None and count <= 0:
        return 0
    if first is not None:
        starts = known_integer(first)
        if starts is None:
            raise Decline("whether it takes a step depends on the inputs")
        if not starts:
            return 0
    if count == 1:
        return 1
    condition = _Condition(node, opset)
    for step in range(most):
        if not condition.after(step) or step + 1 == count:
            return step + 1
    raise Decline(f"it goes on after {most} steps")


def first_inputs(node: ir.Node, step: int) -> tuple[Array, Array]:
    """The step's number and the condition, as the body of a Loop gets them. ONNX Runtime gives them the shapes of M and
    of the initial condition, [] or [1]."""
    limit, first = (() if v is None or v.shape is None else (1,) * len(v.shape)
                    for v in (*node.inputs[:2], None, None)[:2])
    return np.full(limit, step, np.int64), np.full(first, True)


def scan_steps(scanned: Sequence[ir.Value], axes: Sequence[int]) -> int:
    """The common extent of the scanned inputs. Raises Decline where one is unknown, or there are no steps."""
    lengths = set()
    for value, axis in zip(scanned, axes, strict=True):
        shape = shape_of(value.shape)
        dim = None if shape is None else shape[axis]
        if dim is None or not dim.is_static:
            raise Decline("the number of its steps depends on the inputs")
        lengths.add(dim.value)
    if len(lengths) != 1 or 0 in lengths:
        raise Decline(f"its inputs have {' and '.join(map(str, sorted(lengths)))} steps")
    return lengths.pop()


class _Condition:
    """The part of a body that says whether it goes on. Raises Decline where that depends on anything unknown."""

    def __init__(self, node: ir.Node, opset: int) -> None:
        self.node = node
        self.opset = opset
        self.body = body_of(node)
        self.known: dict[ir.Value, Array] = {}
        self.carried: dict[ir.Value, ir.Value] = {}  # inputs of the body -> what they are in the next step
        needed = self._needed()
        self.nodes = [n for n in self.body if n in needed]

    def _needed(self) -> set[ir.Node]:
        needed: set[ir.Node] = set()
        places = {v: k for k, v in enumerate(self.body.inputs)}
        pending, seen = [self.body.outputs[0]], set(self.body.inputs[:2])
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            place = places.get(value)
            array = _constant(value if place is None else self.node.inputs[place])
            made = value.producer()
            if array is not None:
                self.known[value] = array
                if place is not None:
                    self.carried[value] = self.body.outputs[place - 1]
                    pending.append(self.carried[value])
            elif made is not None and made.graph is self.body and evaluable(made) and all(map(_small, made.outputs)):
                needed.add(made)
                pending += [v for v in made.inputs if v is not None]
            else:
                raise Decline(f"whether it goes on depends on '{value.name}'")
        return needed

    def after(self, step: int) -> bool:
        """Whether there is a step after this one. To be asked once for each, in order."""
        values = {**self.known, **dict(zip(self.body.inputs[:2], first_inputs(self.node, step), strict=True))}
        for node in self.nodes:
            given = [None if v is None else values[v] for v in node.inputs]
            try:
                results = evaluate(node, given, [None if v is None else v.dtype for v in node.inputs], self.opset)
            except CannotEvaluate as reason:
                raise Decline(f"whether it goes on depends on '{node.name}' ({node.op_type}): {reason}") from reason
            for output, result in zip(node.outputs, results, strict=False):
                if output.dtype is None or result.dtype != output.dtype.numpy():
                    raise Decline(f"whether it goes on depends on '{output.name}', whose type is not the model's")
                values[output] = result
        self.known.update({value: values[following] for value, following in self.carried.items()})
        return bool(values[self.body.outputs[0]].reshape(-1)[0])


def _constant(value: ir.Value | None) -> Array | None:
    """The contents of a small constant that has arithmetic."""
    if value is None or not _small(value):
        return None
    tensor = constant_of(value)
    return known_contents(value) if tensor is None else tensor.numpy()


def _small(value: ir.Value) -> bool:
    sizes = static_sizes(shape_of(value.shape))
    return sizes is not None and value.dtype not in (None, ir.DataType.STRING) and math.prod(sizes) <= _ELEMENTS
