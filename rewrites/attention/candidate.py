"""What recognition hands on: a legal attention."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tilegraph.ops.attention import AttentionSpace
from tilegraph.ops.prims import Lowered
from tilegraph.rewrites.attention.operators import Owner


@dataclass(frozen=True)
class Candidate:
    """A legal attention. `clones` are those of its nodes that stay in the graph for others too; `owner` is the operator
    that it was written as, if it was. `caches`: nodes that concatenate keys or values, whose results are results too.
    """

    nodes: tuple[ir.Node, ...]
    clones: frozenset[ir.Node]
    output: ir.Value
    lowered: Lowered
    space: AttentionSpace
    owner: Owner | None = None
    caches: tuple[ir.Node, ...] = ()

    @property
    def outputs(self) -> list[ir.Value]:
        return [self.output, *(node.outputs[0] for node in self.caches)]
