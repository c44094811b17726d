"""Branches that no input can run, and what a branch asks of the extents.

An exporter's branch for another rank often leads to operators that refuse that rank: a scripted model's test of
whether a signal is batched, say. Where one branch fails on every input, and the other on every input for which the
condition chooses the first, the condition has nothing to choose: a run that ends in an error ends in one without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from tilegraph.rewrites.normalise.edit import constant_of, is_op, is_used
from tilegraph.rewrites.normalise.infer.info import shape_of
from tilegraph.rewrites.normalise.shapes import symbolic_contents
from tilegraph.spec.dims import Dim

_ONE = Dim.of(1)
_RANKS = {"LSTM": 3, "GRU": 3, "RNN": 3, "Gemm": 2}


def failing(graph: ir.Graph) -> str | None:
    """Why no input can run `graph`, or None: a node that always runs and always refuses its operands."""
    for node in graph:
        if node.domain == "" and any(is_used(v) for v in node.outputs):
            reason = _refuses(node)
            if reason is not None:
                return f"{node.op_type} {node.name} {reason}"
    return None


def _refuses(node: ir.Node) -> str | None:
    ranks = [None if v is None or v.shape is None else len(v.shape) for v in node.inputs]
    wanted = _RANKS.get(node.op_type)
    if wanted is not None and ranks[0] not in (None, wanted):
        return f"takes {wanted} dims and gets {ranks[0]}"
    if node.op_type == "Conv" and None not in ranks[:2] and ranks[0] != ranks[1]:
        return f"gets {ranks[0]} dims and filters of {ranks[1]}"
    if node.op_type == "Concat" and len({r for r in ranks if r is not None}) > 1:
        return "gets operands of different ranks"
    if is_op(node, "Squeeze") and any(d is not None and d.is_static and d != _ONE for d in _squeezed(node)):
        return "is to leave out a dim that is not 1"
    return None


def _squeezed(node: ir.Node) -> list[Dim | None]:
    """The extents that a Squeeze leaves out; none where its axes are unknown."""
    source = node.inputs[0]
    shape = None if source is None else shape_of(source.shape)
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    else:
        given = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = [] if given is None else [int(a) for a in given.numpy().reshape(-1)]
    if shape is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return []
    return [shape[a] for a in axes]


def needs_one(graph: ir.Graph) -> Iterator[Dim]:
    """The extents that have to be 1 in every run of `graph` that succeeds."""
    for node in graph:
        if is_op(node, "Squeeze") and any(is_used(v) for v in node.outputs):
            yield from (d for d in _squeezed(node) if d is not None)


def says_one(condition: ir.Value | None, truth: bool = True) -> Dim | None:
    """The extent of which `condition` being `truth` says that it is 1, and not being, that it is not."""
    node = None if condition is None else condition.producer()
    if node is None:
        return None
    if is_op(node, "Not"):
        return says_one(node.inputs[0], not truth)
    if is_op(node, "Cast", "Squeeze", "Unsqueeze", "Reshape", "Identity"):
        return says_one(node.inputs[0], truth)
    if not is_op(node, "Equal") or not truth:
        return None
    sides = [_element(v) for v in node.inputs]
    for one, other in (sides, sides[::-1]):
        if one == _ONE and other is not None:
            return other
    return None


def _element(value: ir.Value | None) -> Dim | None:
    contents = None if value is None else symbolic_contents(value)
    return contents[0] if contents is not None and len(contents) == 1 else None
