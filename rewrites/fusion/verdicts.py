"""Remembers what was found about a set of nodes, for every other set of the same structure.

Models repeat their layers, and growth asks about each prefix of each region. Two sets have the same structure if their
nodes, attributes, wiring, shapes, dtypes, small constants and outputs are the same; then so are their prims and their
space, with other values behind the inputs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import onnx_ir as ir

from tilegraph.ops.lower import is_parameter, lower_region
from tilegraph.ops.lower.base import constant_of
from tilegraph.ops.prims import Decline, Lowered

S = TypeVar("S")
_CONTENTS = 4096  # elements of a constant that the structure includes; a larger one is only itself


@dataclass(frozen=True)
class _Known(Generic[S]):
    """The result for one set; `values` are its outside values and `names` all its names, in order of occurrence."""

    lowered: Lowered | None
    space: S | None
    reason: Decline | None
    values: tuple[ir.Value, ...]
    names: tuple[str, ...]


class Verdicts(Generic[S]):
    """`ask(nodes, outputs)` is `lower` and `planner`, computed once for each structure.

    Both must depend on nothing but the structure, and `Lowered.inputs` must be outside values of the nodes.
    """

    def __init__(self, opsets: Mapping[str, int], planner: Callable[[Lowered], S],
                 lower: Callable[[Sequence[ir.Node], Sequence[ir.Value], Mapping[str, int]], Lowered] = lower_region) \
            -> None:
        self.opsets = opsets
        self.planner = planner
        self.lower = lower
        self._known: dict[str, _Known[S]] = {}
        self._nodes: dict[ir.Node, str] = {}
        self._values: dict[ir.Value, str] = {}

    def ask(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> tuple[Lowered, S]:
        """Raises `Decline`, with the names of these nodes."""
        text, values, names = self._structure(nodes, outputs)
        known = self._known.get(text)
        if known is None:
            known = self._find(nodes, outputs, values, names)
            self._known[text] = known
        if known.reason is not None:
            raise _renamed(known.reason, known.names, names)
        assert known.lowered is not None
        assert known.space is not None
        place = {v: k for k, v in enumerate(known.values)}
        inputs = tuple((slot, values[place[v]]) for slot, v in known.lowered.inputs)
        return replace(known.lowered, inputs=inputs), known.space

    def _find(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], values: tuple[ir.Value, ...],
              names: tuple[str, ...]) -> _Known[S]:
        try:
            lowered = self.lower(nodes, outputs, self.opsets)
            return _Known(lowered, self.planner(lowered), None, values, names)
        except Decline as reason:
            return _Known(None, None, reason, values, names)

    def _structure(self, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) \
            -> tuple[str, tuple[ir.Value, ...], tuple[str, ...]]:
        numbers: dict[ir.Value, int] = {}
        outside: list[ir.Value] = []
        names: list[str] = []
        lines: list[str] = []
        for node in nodes:
            read = []
            for index, value in enumerate(node.inputs):
                if value is None:
                    read.append("")
                    continue
                if value not in numbers:
                    numbers[value] = len(numbers)
                    outside.append(value)
                    names.append(value.name or "")
                    read.append(f"{numbers[value]}:{self._value(value)}{self._steers(node, index)}")
                else:
                    read.append(str(numbers[value]))
            for value in node.outputs:
                numbers[value] = len(numbers)
                names.append(value.name or "")
            names.append(node.name or "")
            lines.append(f"{self._node(node)}({','.join(read)})")
        lines.append(",".join(str(numbers[v]) for v in outputs))
        return "\n".join(lines), tuple(outside), tuple(names)

    def _node(self, node: ir.Node) -> str:
        if node not in self._nodes:
            attributes = ",".join(f"{a.name}={_attribute(a)}" for a in sorted(node.attributes.values(),
                                                                             key=lambda a: a.name))
            made = ",".join(_typed(v) if v.name else "" for v in node.outputs)
            self._nodes[node] = f"{node.domain}.{node.op_type}<{attributes}>{made}"
        return self._nodes[node]

    def _value(self, value: ir.Value) -> str:
        if value not in self._values:
            text = _typed(value)
            array = None if value.const_value is None and value.producer() is None else constant_of(value)
            if array is not None:
                if array.size == 1 or (array.dtype.kind in "iub" and array.size <= _CONTENTS):
                    text += "=" + hashlib.sha256(array.tobytes()).hexdigest()[:16]
                elif array.dtype.kind in "iub":
                    text += f"=itself{id(value)}"
                else:
                    text += "=constant"
            self._values[value] = text
        return self._values[value]

    def _steers(self, node: ir.Node, index: int) -> str:
        """The contents of floats that steer the operation, such as the scales of Resize."""
        value = node.inputs[index]
        if index == 0 or value is None or not self._values[value].endswith("=constant") \
                or not is_parameter(node, index):
            return ""
        array = constant_of(value)
        return "" if array is None else hashlib.sha256(array.tobytes()).hexdigest()[:16]


def _typed(value: ir.Value) -> str:
    return f"{value.dtype.name if value.dtype is not None else '?'}{value.shape}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype.name}{tensor.shape}{hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return f"graph{id(attribute)}"
    return repr(attribute.value)


def _renamed(reason: Decline, old: Sequence[str], new: Sequence[str]) -> Decline:
    """The reason with the names of another set of the same structure."""
    names = {a: b for a, b in zip(old, new, strict=True) if a and a != b}
    if not names:
        return reason
    words = "|".join(re.escape(a) for a in sorted(names, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w/])({words})(?![\w/])")

    def swap(text: str) -> str:
        return pattern.sub(lambda m: names[m.group(1)], text)

    return Decline(swap(reason.reason), swap(reason.node))
