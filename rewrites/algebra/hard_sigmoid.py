"""HardSigmoid spelled out as Add, Clip and a division becomes HardSigmoid; what it gates stays a Mul.

    Clip(a x + b, 0, m) / m            =  HardSigmoid(x; a / m, b / m)
    x * Clip(a x + b, 0, m) / m        =  x * HardSigmoid(x; a / m, b / m)
    (x / m) * Clip(a x + b, 0, m)      =  the same

because HardSigmoid(x; alpha, beta) = max(0, min(1, alpha x + beta)), and clipping commutes with division by m > 0. In
floating point alpha and beta are rounded once and the sum once: an error of two eps of the largest of |alpha x|, |beta|
and 1, where the original had one or two roundings of the same size. x in the product may be any value.

Handles: Add, Sub, Mul and Div by scalars before Clip, in any order and number; operands on either side; limits of Clip
as inputs or attributes; m = 1 without a division; division as Div by m or Mul by 1 / m (within two eps, as exporters
round it), before or after the product.

A HardSwish operator (opset 14) is not made: docs/decisions.md has the figures.

Refused: a lower limit other than 0, an upper one that is not a finite positive constant; a scalar after the product
that is not 1 / m; values between that something else reads; integers and half types;
float64, for which ONNX Runtime has no HardSigmoid.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import affine_of, chain_above, only_reader
from tilegraph.rewrites.algebra.constants import floats
from tilegraph.rewrites.normalise.edit import Names, is_op, remove, replace

_TOLERANCE = 4 * float(np.finfo(np.float32).eps)


class HardSigmoid(Pass):
    name = "hard-sigmoid"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        names = Names(model)
        for graph in all_graphs(model):
            for node in list(graph):
                plain = is_op(node, "Clip") and node.outputs[0].dtype == ir.DataType.FLOAT
                if plain and _rewrite(node, names, model.graph):
                    context.diagnostics.took(self.name, node.name or "", "part of a hard sigmoid", op="Clip")
                    modified = True
        return PassResult(modified)


def limits(clip: ir.Node) -> tuple[float, float] | None:
    """The limits of a Clip, infinite where absent; None when they are not constant scalars."""
    found = [-np.inf, np.inf]
    for k, name in enumerate(("min", "max")):
        value = clip.inputs[k + 1] if len(clip.inputs) > k + 1 else None
        if value is not None:
            number = floats(value)
            if number is None or number.size != 1:
                return None
            found[k] = float(number.reshape(()))
        elif name in clip.attributes:
            if clip.attributes[name].is_ref():
                return None
            found[k] = clip.attributes[name].as_float()
    return found[0], found[1]


def _rewrite(clip: ir.Node, names: Names, root: ir.Graph) -> bool:
    bounds, clipped = limits(clip), clip.inputs[0]
    if bounds is None or clipped is None or bounds[0] != 0 or not 0 < bounds[1] < np.inf:
        return False
    above, affine = chain_above(clipped, clip, norms=False)
    while above and max(affine.scale.size, affine.shift.size) > 1:
        affine = chain_above(clipped, clip, norms=False, first=above[1] if len(above) > 1 else clip)[1]
        above = above[1:]
    if not above:
        return False
    source, limit = affine.source, bounds[1]
    alpha, beta = float(affine.scale.reshape(())) / limit, float(affine.shift.reshape(())) / limit
    if not np.isfinite(np.array([alpha, beta], np.float32)).all() or np.float32(alpha) == 0:
        return False
    output = clip.outputs[0]
    divided = _division(output, clip.graph, limit)
    if divided is not None or limit == 1:
        _make(source, alpha, beta, divided or clip, names, root)
        for gone in reversed([*above, clip] if divided is not None else above):
            if gone is not clip or divided is not None:
                remove(gone)
        return True
    product = only_reader(output, clip.graph)
    if product is None or not is_op(product, "Mul"):
        return False
    other = 1 - list(product.inputs).index(output)
    divided = _division(product.outputs[0], clip.graph, limit)
    if divided is not None:
        gate = _gate(source, alpha, beta, clip, names)
        product.replace_input_with(1 - other, gate)
        replace(divided.outputs[0], product.outputs[0], root)
        doomed = [*above, clip, divided]
    else:
        before = product.inputs[other]
        scaler = None if before is None else before.producer()
        step = None if scaler is None else affine_of(scaler, norms=False)
        if (before is None or scaler is None or step is None or only_reader(before, clip.graph) is not product
                or not _is_reciprocal(step.scale, step.shift, limit)):
            return False
        gate = _gate(source, alpha, beta, clip, names)
        product.replace_input_with(1 - other, gate)
        product.replace_input_with(other, step.source)
        doomed = [*above, clip, scaler]
    for gone in reversed(doomed):
        remove(gone)
    return True


def _division(value: ir.Value, graph: ir.Graph | None, limit: float) -> ir.Node | None:
    """The only reader of `value`, if it divides by `limit`."""
    node = only_reader(value, graph)
    step = None if node is None else affine_of(node, norms=False)
    return node if step is not None and _is_reciprocal(step.scale, step.shift, limit) else None


def _is_reciprocal(scale: np.ndarray, shift: np.ndarray, limit: float) -> bool:
    return scale.size == 1 and not shift.any() and abs(float(scale.reshape(())) * limit - 1) <= _TOLERANCE


def _gate(source: ir.Value, alpha: float, beta: float, at: ir.Node, names: Names) -> ir.Value:
    """HardSigmoid(source), made after `at`."""
    node = ir.node("HardSigmoid", [source], {"alpha": alpha, "beta": beta}, name=names.node(f"{at.name}_hard_sigmoid"))
    result = node.outputs[0]
    result.name = names.value(f"{at.outputs[0].name}_hard_sigmoid")
    result.type, result.shape = at.outputs[0].type, at.outputs[0].shape
    at.append(node)
    return result


def _make(source: ir.Value, alpha: float, beta: float, last: ir.Node, names: Names, root: ir.Graph) -> None:
    """Replaces the result of `last` by HardSigmoid(source) and takes `last` out."""
    replace(last.outputs[0], _gate(source, alpha, beta, last, names), root)
    remove(last)
