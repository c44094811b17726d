"""The pass behind `--weights`: matrices of products are rounded to 4 or 8 bits, in blocks of the summed dim.

A matrix becomes DequantizeLinear of integers with a float32 scale for each block of a column (opset 21). int8: 127
times the scale is the largest magnitude of the block. int4: uint4 with a zero point, so that the block's range, which
takes in 0, has 15 steps. What the rounding costs is said for each matrix; products are computed in float32.

Handles: MatMul and Gemm (transB too) with an initializer of float32 and two dims that only such products read, also
through a transpose. Refused: matrices that something else reads, such as tied embeddings;
matrices below `MIN_ELEMENTS`, which are not worth a scale; values that are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics
from tilegraph.errors import UsageError
from tilegraph.io.convert import STAGE as OPSET_STAGE
from tilegraph.io.convert import to_opset
from tilegraph.io.walk import all_graphs
from tilegraph.passes import Pass, PassContext, PassResult
from tilegraph.rewrites.normalise import Shapes
from tilegraph.rewrites.normalise.edit import Names, constant_of, is_op

MIN_ELEMENTS = 4096
OPSET = 21  # of DequantizeLinear by block and of 4-bit integers
STAGE = "weights"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """How matrices are stored: `bits`, in blocks of `block` elements along the summed dim."""

    bits: int
    block: int


KINDS = {"int8": Kind(8, 64), "int4": Kind(4, 32)}
WEIGHTS = ("float32", *KINDS)


class QuantizeWeights(Pass):
    name = "quantize-weights"

    def __init__(self, kind: str) -> None:
        self.asked, self.kind = kind, KINDS[kind]

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        names = Names(model)
        found: dict[ir.Value, list[ir.Node]] = {}
        for graph in all_graphs(model):
            for node in graph:
                if is_op(node, "MatMul", "Gemm") and (matrix := _matrix(node)) is not None:
                    found.setdefault(matrix, []).append(node)
        modified = bool(found) and self._raise_opset(model)
        for matrix, products in found.items():
            reason = self._replace(model, matrix, products, names, context)
            if reason:
                context.diagnostics.refused(STAGE, matrix.name or "", reason, op=products[0].op_type)
            modified |= not reason
        return PassResult(modified)

    def _raise_opset(self, model: ir.Model) -> bool:
        """Whether that changed the model. `UsageError` where it cannot be."""
        if model.graph.opset_imports.get("", OPSET) < OPSET:
            Shapes().run(model, PassContext())  # some operators can be raised where their types are known
        log = Diagnostics()
        changed = to_opset(model, OPSET, log)
        if refused := log.of(OPSET_STAGE, taken=False):
            raise UsageError(f"--weights {self.asked}: needs opset {OPSET}, and {refused[0].subject} is in the way "
                             f"({refused[0].reason})")
        return changed

    def _replace(self, model: ir.Model, matrix: ir.Value, products: list[ir.Node], names: Names,
                 context: PassContext) -> str:
        """Makes the matrix integers; why not, or ""."""
        tensor = constant_of(matrix)
        assert tensor is not None
        if matrix.is_graph_output() or any(not _reads(user, matrix, products) for user, _ in matrix.uses()):
            return "something else than products reads it"
        axes = {_summed_axis(node, matrix) for node in products}
        if len(axes) > 1:
            return "it is read in two layouts"
        array = tensor.numpy()
        if array.size < MIN_ELEMENTS:
            return f"fewer than {MIN_ELEMENTS} elements"
        if not np.isfinite(array).all():
            return "values that are not finite"
        axis = axes.pop()
        rounded = quantize(array, axis, self.kind)
        inputs = [_constant(model, names.value(f"{matrix.name}_{what}"), part, dtype)
                  for what, part, dtype in rounded.parts]
        node = ir.node("DequantizeLinear", inputs, {"axis": axis, "block_size": self.kind.block},
                       name=names.node(f"{matrix.name}_dequantize"))
        made = node.outputs[0]
        made.name = names.value(f"{matrix.name}_dequantized")
        made.type, made.shape = matrix.type, matrix.shape
        model.graph.insert_before(model.graph[0], node)
        for user, index in list(matrix.uses()):
            user.replace_input_with(index, made)
        assert isinstance(matrix.graph, ir.Graph)
        del matrix.graph.initializers[str(matrix.name)]
        context.diagnostics.took(STAGE, matrix.name or "", f"{self.kind.bits} bits in blocks of {self.kind.block}: "
                                 f"{rounded.relative:.2%} of the matrix in the root mean square, "
                                 f"at most {rounded.largest:.3g}",
                                 op="DequantizeLinear", bits=self.kind.bits, block=self.kind.block,
                                 relative_error=rounded.relative, max_error=rounded.largest,
                                 bytes=sum(_bytes(part, dtype) for _, part, dtype in rounded.parts))
        return ""


def _matrix(node: ir.Node) -> ir.Value | None:
    """The float32 initializer with two dims that is the matrix of a product, also through a transpose."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is not None and is_op(value.producer(), "Transpose"):
        producer = value.producer()
        assert producer is not None
        value = producer.inputs[0]
    if value is None or not value.is_initializer() or constant_of(value) is None:
        return None
    if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 2:
        return None
    return value


def _reads(user: ir.Node, matrix: ir.Value, products: list[ir.Node]) -> bool:
    if is_op(user, "Transpose"):
        return all(reader in products and index == 1 for reader, index in user.outputs[0].uses()) \
            and not user.outputs[0].is_graph_output()
    return user in products and [k for k, v in enumerate(user.inputs) if v is matrix] == [1]


def _summed_axis(node: ir.Node, matrix: ir.Value) -> int:
    turned = is_op(node, "Gemm") and "transB" in node.attributes and bool(node.attributes["transB"].as_int())
    return int(turned != (node.inputs[1] is not matrix))


def _constant(model: ir.Model, name: str, array: Array, dtype: ir.DataType) -> ir.Value:
    tensor = ir.Tensor(array, dtype=dtype, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _bytes(array: Array, dtype: ir.DataType) -> int:
    return -(-array.size * (4 if dtype == ir.DataType.UINT4 else array.itemsize * 8) // 8)


@dataclass(frozen=True)
class Rounded:
    """`parts`: name, contents and dtype of the integers, scales and zero points; the error that was made, as the root
    of the sum of squares of the differences to that of the matrix, and as the largest difference."""

    parts: tuple[tuple[str, Array, ir.DataType], ...]
    relative: float
    largest: float


def quantize(matrix: Array, axis: int, kind: Kind) -> Rounded:
    """`matrix` [2 dims] in blocks along `axis`; the last block may be shorter."""
    rows = matrix if axis == 0 else matrix.T
    depth, width = rows.shape
    count = -(-depth // kind.block)
    filled = np.zeros((count * kind.block, width), np.float32)
    filled[:depth] = rows
    blocks = filled.reshape(count, kind.block, width)
    if kind.bits == 8:
        scales = np.abs(blocks).max(1) / np.float32(127)
        zeros = None
    else:
        scales = (blocks.max(1).clip(0) - blocks.min(1).clip(None, 0)) / np.float32(15)
    scales = np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales).astype(np.float32)
    steps = np.rint(blocks / scales[:, None])
    low, high = -127.0, 127.0
    if kind.bits == 4:
        low, high = 0.0, 15.0
        zeros = np.rint(-blocks.min(1).clip(None, 0) / scales).clip(low, high)
        steps = steps + zeros[:, None]
    steps = steps.clip(low, high)
    back = (steps - (0 if zeros is None else zeros[:, None])) * scales[:, None] - blocks
    size = float(np.sqrt(np.square(blocks, dtype=np.float64).sum()))
    error = float(np.sqrt(np.square(back, dtype=np.float64).sum()))
    integers = steps.reshape(-1, width)[:depth]
    parts = [("integers", integers, ir.DataType.INT8 if kind.bits == 8 else ir.DataType.UINT4),
             ("scales", scales, ir.DataType.FLOAT)]
    if zeros is not None:
        parts.append(("zeros", zeros, ir.DataType.UINT4))
    kept = tuple((name, np.ascontiguousarray((part if axis == 0 else part.T).astype(_NUMPY[dtype])), dtype)
                 for name, part, dtype in parts)
    return Rounded(kept, error / size if size else 0.0, float(np.abs(back).max()))


_NUMPY = {ir.DataType.INT8: np.int8, ir.DataType.UINT4: ml_dtypes.uint4, ir.DataType.FLOAT: np.float32}
