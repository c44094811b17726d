"""What regions that were found hold copies of, while the graph is still as it was."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from tilegraph.graph import GraphView


class Copies:
    """Who reads a value once the regions found so far are made: their copies of views read what those views read, and
    their nodes read the copies instead of the views."""

    def __init__(self) -> None:
        self._read: set[ir.Value] = set()
        self._redirected: set[tuple[ir.Value, ir.Node]] = set()

    def add(self, nodes: Collection[ir.Node], clones: frozenset[ir.Node]) -> None:
        """A region of `nodes` that leaves `clones` of them in the graph."""
        own = set(nodes) - clones
        for clone in clones:
            self._read.update(v for v in clone.inputs if v is not None)
        for node in own:
            self._redirected.update((v, node) for v in node.inputs if v is not None and v.producer() in clones)

    def read(self, value: ir.Value) -> bool:
        """Whether a copy reads `value`."""
        return value in self._read

    def read_outside(self, value: ir.Value, members: Collection[ir.Node], view: GraphView) -> bool:
        """Whether anything but `members` reads `value`, or the graph returns it."""
        return value in view.outputs or value in self._read or any(
            user not in members and (value, user) not in self._redirected for user in view.users(value))

    def replace(self, node: ir.Node, view: GraphView) -> bool:
        """Whether every reader of `node` has a copy of it."""
        used = [v for v in node.outputs if view.users(v)]
        return bool(used) and not any(self.read_outside(v, (), view) for v in node.outputs)
