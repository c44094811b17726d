"""A transposed matrix of a Gemm is read where it lies.

    Gemm(x, T(w))  =  Gemm(x, w; transB = 1)

The same products in the same order. Training steps are full of these, as PyTorch stores the matrix of a linear layer
transposed and a step's matrices are no constants, which folding would turn. ONNX Runtime does the same only where a
single node reads the Gemm, and what a gradient needs again is read by several (figures in docs/decisions.md).

Handles: either operand of any Gemm of two computed matrices.
Refused: a constant beside or under the Transpose (folding and fuse-gemm see to these, and kernels want rows that lie
together); MatMul, whose Transposes ONNX Runtime takes in always.
"""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.transposes import perm_of
from tilegraph.rewrites.normalise.edit import constant_of, is_op, is_used, remove

_FLAGS = ("transA", "transB")


class GemmTransposed(Pass):
    name = "gemm-transposed"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for graph in all_graphs(model):
            for node in list(graph):
                if not is_op(node, "Gemm") or any(_is_constant(v) for v in node.inputs[:2]):
                    continue
                for index, flag in enumerate(_FLAGS):
                    if _read_in_place(node, index, flag):
                        context.diagnostics.took(self.name, node.name or "", f"reads operand {index} transposed",
                                                 op="Gemm")
                        modified = True
        return PassResult(modified)


def _is_constant(value: ir.Value | None) -> bool:
    producer = None if value is None else value.producer()
    if producer is not None and is_op(producer, "Transpose"):
        value = producer.inputs[0]
    return constant_of(value) is not None


def _read_in_place(node: ir.Node, index: int, flag: str) -> bool:
    operand = node.inputs[index]
    transpose = None if operand is None else operand.producer()
    if transpose is None or not is_op(transpose, "Transpose") or transpose.graph is not node.graph:
        return False
    given = node.attributes.get(flag)
    if perm_of(transpose) != (1, 0) or (given is not None and given.is_ref()):
        return False
    node.attributes[flag] = ir.AttrInt64(flag, 0 if given is not None and given.as_int() else 1)
    node.replace_input_with(index, transpose.inputs[0])
    if not is_used(transpose.outputs[0]):
        remove(transpose)
    return True
