"""Initializers with equal type, shape and bytes become one; a subgraph's gives way to the outer graph's.

Memory-mapped ones are read where they lie. Large ones are read whole only when another one has the same type, shape
and bytes in the middle. Bytes decide, so 0.0 and -0.0, or two NaNs, stay apart. Left alone: initializers that are graph
inputs (a caller may override them), and those that are graph outputs, which keep their names but may serve others.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilegraph.io.walk import subgraphs_of
from tilegraph.passes.base import Pass, PassContext, PassResult

_Key = tuple[ir.DataType, tuple[int, ...], bytes]
_SAMPLE = 4096  # bytes looked at before the whole tensor is


class DedupInitializers(Pass):
    name = "dedup-initializers"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        groups: dict[_Key, list[ir.TensorProtocol]] = defaultdict(list)
        for graph in model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None:
                    groups[_key(value.const_value)].append(value.const_value)
        digests = {id(t): (k, digest(t)) for k, tensors in groups.items() if len(tensors) > 1 for t in tensors}
        return PassResult(_dedup(model.graph, {}, digests))


def _key(tensor: ir.TensorProtocol) -> _Key:
    """What equal tensors share and costs little: type, shape, and the bytes in the middle of a large one."""
    sample = b""
    if tensor.dtype != ir.DataType.STRING and tensor.nbytes > _SAMPLE:
        middle = (tensor.nbytes - _SAMPLE) // 2
        if isinstance(tensor, ir.ExternalTensor):
            with open(os.fspath(tensor.path), "rb") as file:
                file.seek((tensor.offset or 0) + middle)
                sample = file.read(_SAMPLE)
        elif tensor.dtype.bitwidth >= 8:
            sample = _bytes_of(tensor)[middle:middle + _SAMPLE].tobytes()
    return tensor.dtype, tuple(int(d) for d in tensor.shape.numpy()), sample


def _bytes_of(tensor: ir.TensorProtocol) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)


def _dedup(graph: ir.Graph, outer: dict[tuple[_Key, bytes], ir.Value],
           digests: dict[int, tuple[_Key, bytes]]) -> bool:
    """`digests` has the tensors that may have an equal one, by identity."""
    modified = False
    visible = dict(outer)
    # Outputs first: they stay whatever happens, so others may point at them.
    for value in sorted(graph.initializers.values(), key=lambda v: not v.is_graph_output()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or id(tensor) not in digests:
            continue
        first = visible.setdefault(digests[id(tensor)], value)
        if first is value or value.is_graph_output():
            continue
        for user, index in list(value.uses()):
            user.replace_input_with(index, first)
        assert value.name is not None
        del graph.initializers[value.name]
        modified = True
    for node in graph:
        for inner in subgraphs_of(node):
            modified |= _dedup(inner, visible, digests)
    return modified


def digest(tensor: ir.TensorProtocol) -> bytes:
    """A hash of the elements."""
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
        state.update(_bytes_of(tensor).data)
    else:
        state.update(tensor.tobytes())
    return state.digest()
