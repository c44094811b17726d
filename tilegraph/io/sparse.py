"""Sparse initializers made dense, as ONNX Runtime does when it loads a model (onnx_ir would drop them)."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from tilegraph.errors import InputError


def densify(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A copy of `proto` whose sparse initializers are ordinary ones. Raises InputError for malformed indices."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for sparse in copy.graph.sparse_initializer:
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        dims = tuple(sparse.dims)
        dense = np.zeros(math.prod(dims), values.dtype)
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), dims) if indices.size else indices.reshape(-1)
        if indices.shape != values.shape or (indices.size and not 0 <= indices.min() <= indices.max() < dense.size):
            raise InputError(f"{name}: the indices of sparse initializer '{sparse.values.name}' do not fit its shape")
        dense[indices] = values
        copy.graph.initializer.append(numpy_helper.from_array(dense.reshape(dims), sparse.values.name))
    copy.graph.ClearField("sparse_initializer")
    return copy
