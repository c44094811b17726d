"""Initializers with equal type, shape and bytes become one; a subgraph's gives way to the outer graph's.

Memory-mapped ones are hashed where they lie, and only when another one has the same type and shape. Bytes decide, so
0.0 and -0.0, or two NaNs, stay apart. Left alone: initializers that are graph inputs (a caller may override them),
and those that are graph outputs, which keep their names but may serve others.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.passes.base import Pass, PassContext, PassResult

_Key = tuple[ir.DataType, tuple[int, ...]]


class DedupInitializers(Pass):
    name = "dedup-initializers"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        groups: dict[_Key, int] = defaultdict(int)
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None:
                    groups[_key(value.const_value)] += 1
        return PassResult(_dedup(model.graph, {}, groups))


def _key(tensor: ir.TensorProtocol) -> _Key:
    return tensor.dtype, tuple(int(d) for d in tensor.shape.numpy())


def _dedup(graph: ir.Graph, outer: dict[tuple[_Key, bytes], ir.Value], groups: dict[_Key, int]) -> bool:
    modified = False
    visible = dict(outer)
    # Outputs first: they stay whatever happens, so others may point at them.
    for value in sorted(graph.initializers.values(), key=lambda v: not v.is_graph_output()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or groups[_key(tensor)] < 2:
            continue
        identity = (_key(tensor), digest(tensor))
        first = visible.setdefault(identity, value)
        if first is value or value.is_graph_output():
            continue
        for user, index in list(value.uses()):
            user.replace_input_with(index, first)
        assert value.name is not None
        del graph.initializers[value.name]
        modified = True
    for node in graph:
        for inner in subgraphs_of(node):
            modified |= _dedup(inner, visible, groups)
    return modified


def digest(tensor: ir.TensorProtocol) -> bytes:
    """A hash of the elements; of the place in its file for an external tensor would not find copies."""
    state = hashlib.blake2b(digest_size=32)
    if tensor.dtype == ir.DataType.STRING:
        for text in tensor.numpy().reshape(-1):
            raw = text if isinstance(text, bytes) else str(text).encode()
            state.update(len(raw).to_bytes(8, "little") + raw)
    elif isinstance(tensor, ir.ExternalTensor):
        with open(os.fspath(tensor.path), "rb") as file:
            file.seek(tensor.offset or 0)
            left = tensor.nbytes
            while left:
                chunk = file.read(min(left, 4 << 20))
                if not chunk:
                    raise OSError(f"{tensor.path} became shorter while it was read")
                state.update(chunk)
                left -= len(chunk)
    elif tensor.dtype.bitwidth >= 8:
        state.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
    else:
        state.update(tensor.tobytes())
    return state.digest()
