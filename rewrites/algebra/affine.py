"""Nodes that scale and shift by constants, and chains of them: y = scale * x + shift.

Add, Sub, Mul and Div with a constant operand, and BatchNormalization outside training. Scales and shifts are float64
arrays that broadcast to x without enlarging it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilegraph.rewrites.algebra.constants import FLOATS, Array, floats
from tilegraph.rewrites.normalise.edit import constant_of, is_op, is_used
from tilegraph.rewrites.normalise.infer.info import shape_of

PRODUCTS = ("Gemm", "MatMul")  # their kernels take in the scales and shifts that are not folded

_LIMIT = 1 << 16  # elements of a constant operand that is looked at
_SCALARS = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class Affine:
    """`scale` and `shift` are finite float64 arrays, scalars or of the rank of x or less."""

    source: ir.Value
    scale: Array
    shift: Array

    def then(self, scale: Array, shift: Array) -> Affine:
        return Affine(self.source, scale * self.scale, scale * self.shift + shift)


def affine_of(node: ir.Node, *, norms: bool = True) -> Affine | None:
    """What `node` does to its one input that is not constant; None if it is not affine, or not certainly so.

    `norms`: BatchNormalization counts too.
    """
    if norms and is_op(node, "BatchNormalization"):
        return _batch_norm(node)
    if not is_op(node, *_SCALARS) or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if constant_of(right) is not None:
        source, constant, swapped = left, right, False
    elif constant_of(left) is not None:
        source, constant, swapped = right, left, True
    else:
        return None
    if source.dtype not in FLOATS or not _broadcasts_to(constant, source):
        return None
    number = floats(constant)
    if number is None or number.size > _LIMIT:
        return None
    one, zero = np.ones(()), np.zeros(())
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if node.op_type == "Add":
            scale, shift = one, number
        elif node.op_type == "Sub":
            scale, shift = (-one, number) if swapped else (one, -number)
        elif node.op_type == "Mul":
            scale, shift = number, zero
        elif swapped:
            return None  # constant / x
        else:
            scale, shift = 1 / number, zero
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    return Affine(source, scale, shift)


def _broadcasts_to(constant: ir.Value, source: ir.Value) -> bool:
    """Whether `constant` leaves the shape of `source` as it is, whatever its symbolic extents are."""
    tensor, dims = constant_of(constant), shape_of(source.shape)
    if tensor is None or dims is None:
        return False
    shape = tensor.shape.numpy()
    if len(shape) > len(dims):
        return False
    for size, dim in zip(reversed(shape), reversed(dims), strict=False):
        if size != 1 and (dim is None or dim.as_int() != size):
            return False
    return True


def _batch_norm(node: ir.Node) -> Affine | None:
    """y = (x - mean) * gamma / sqrt(variance + epsilon) + beta over axis 1."""
    training, epsilon = node.attributes.get("training_mode"), node.attributes.get("epsilon")
    if (training is not None and (training.is_ref() or training.as_int())) or (
            epsilon is not None and epsilon.is_ref()):
        return None
    if "spatial" in node.attributes or any(o.name or is_used(o) for o in node.outputs[1:]) or len(node.inputs) != 5:
        return None
    source = node.inputs[0]
    if source is None or source.dtype not in FLOATS or source.shape is None or len(source.shape) < 2:
        return None
    found = [floats(v) for v in node.inputs[1:]]
    if any(v is None for v in found):
        return None
    gamma, beta, mean, variance = (v for v in found if v is not None)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = gamma / np.sqrt(variance + (1e-5 if epsilon is None else epsilon.as_float()))
        shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    spread = (-1,) + (1,) * (len(source.shape) - 2)
    return Affine(source, scale.reshape(spread), shift.reshape(spread))


def only_reader(value: ir.Value, graph: ir.Graph | None) -> ir.Node | None:
    """The node of `graph` that is the one reader of `value`, once; None for graph outputs and other readers."""
    uses = list(value.uses())
    if value.is_graph_output() or len(uses) != 1 or uses[0][0].graph is not graph:
        return None
    return uses[0][0]


def is_phase(value: ir.Value) -> bool:
    """Whether a sine or cosine reads the value. What counts there is its absolute error, in radians.

    A rounded weight is off by a share of the whole, often large, phase, at every place alike; the scale by itself
    rounds the phase once.
    """
    return any(is_op(node, "Sin", "Cos") for node, _ in value.uses())


def chain_below(value: ir.Value, graph: ir.Graph | None, *, norms: bool = True,
                until: ir.Node | None = None) -> tuple[list[ir.Node], Affine]:
    """The affine nodes that follow `value`, each the only reader of the one before, and all they do to `value`.

    `until`: the node before which the chain ends.
    """
    nodes: list[ir.Node] = []
    total = Affine(value, np.ones(()), np.zeros(()))
    while (node := only_reader(value, graph)) is not None and node is not until:
        step = affine_of(node, norms=norms)
        if step is None or step.source is not value or not _small(total, step):
            break
        total = total.then(step.scale, step.shift)
        nodes.append(node)
        value = node.outputs[0]
    return nodes, total


def chain_above(value: ir.Value, reader: ir.Node, *, norms: bool = True,
                first: ir.Node | None = None) -> tuple[list[ir.Node], Affine]:
    """The affine nodes that end in `value`, which only `reader` reads, first one first, and all they do.

    `first`: the node that the chain starts with at the latest.
    """
    nodes: list[ir.Node] = []
    scale, shift = np.ones(()), np.zeros(())
    while only_reader(value, reader.graph) is reader and (not nodes or nodes[0] is not first):
        node = value.producer()
        step = None if node is None or node.graph is not reader.graph else affine_of(node, norms=norms)
        if node is None or step is None or not _small(Affine(value, scale, shift), step):
            break
        # scale * (step.scale * x + step.shift) + shift
        shift = scale * step.shift + shift
        scale = scale * step.scale
        nodes.insert(0, node)
        value, reader = step.source, node
    return nodes, Affine(value, scale, shift)


def _small(a: Affine, b: Affine) -> bool:
    """Whether their composition is no larger than a constant that is looked at: [c, 1, 1] and [w] make [c, 1, w]."""
    return math.prod(np.broadcast_shapes(a.scale.shape, a.shift.shape, b.scale.shape, b.shift.shape)) <= _LIMIT


def per_channel(array: Array, rank: int, axis: int, channels: int) -> Array | None:
    """`array` as one number for each channel, shape [channels], if it varies along `axis` of `rank` at most."""
    if array.size == 1:
        return np.full(channels, array.reshape(()))
    where = axis - (rank - array.ndim)
    if where < 0 or array.shape[where] != channels or array.size != channels:
        return None
    return array.reshape(channels)
