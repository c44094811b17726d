"""Chains of scales and shifts become one Mul and one Add, where that makes fewer nodes.

    s2 (s1 x + t1) + t2  =  (s1 s2) x + (s2 t1 + t2)

Equal in exact arithmetic. In floating point a product of scales and a sum of shifts are rounded once (from float64), so
there are fewer roundings; but a shift that is carried across a scale can cancel against s x where the original
cancelled exactly. A chain is merged only if no carried shift exceeds four times the final one, element by element: the
error of the sum is then at most 4 eps of what the original's last Add rounds by itself. The same holds for every shift
behind a part of a chain that is merged alone: what was carried there could cancel later, and another run of this pass
would not know.

Handles: Add, Sub, Mul and Div by constants that broadcast (not BatchNormalization), each the only reader of the one
before; constants of float32 and float64.

Refused: chains that would not get shorter or that do nothing; carried shifts that are too large; constants that
would become larger than each of the old ones; results that are not finite.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.affine import Affine, affine_of, chain_below
from tilegraph.rewrites.algebra.constants import Array, Constants, fits
from tilegraph.rewrites.normalise.edit import constant_of, remove, replace

_CARRIED = 4.0


class AffineChain(Pass):
    name = "affine-chain"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        for graph in all_graphs(model):
            for node in list(graph):
                step = affine_of(node, norms=False) if node.graph is graph else None
                if step is None:
                    continue
                rest, _ = chain_below(node.outputs[0], graph, norms=False)
                chain, behind = [node, *rest], list[ir.Node]()
                while len(chain) > 1 and not _merge(chain, behind, constants):
                    behind.insert(0, chain.pop())
                if len(chain) > 1:
                    context.diagnostics.took(self.name, chain[-1].name or "", "one scale and shift for a chain",
                                             op=chain[-1].op_type, nodes=[n.name for n in chain])
                    modified = True
        return PassResult(modified)


def _total(chain: list[ir.Node]) -> tuple[Affine, Array] | None:
    """What the chain does, and the largest magnitude of the shifts that were carried across a scale."""
    total, carried = None, np.zeros(())
    for node in chain:
        step = affine_of(node, norms=False)
        if step is None:
            return None
        if total is None:
            total = step
            continue
        carried = np.abs(step.scale) * carried
        if (step.scale != 1).any():
            carried = np.maximum(carried, np.abs(step.scale * total.shift))
        total = total.then(step.scale, step.shift)
    return None if total is None else (total, carried)


def _cancels(total: Affine, carried: Array, behind: list[ir.Node]) -> bool:
    """Whether too little is left of the carried shifts, at the end of a chain or behind a node that follows it."""
    shifts = [(carried, total.shift)]
    for step in (affine_of(node, norms=False) for node in behind):
        if step is not None:
            carried, total = np.abs(step.scale) * carried, total.then(step.scale, step.shift)
            shifts.append((carried, total.shift))
    return any((held > _CARRIED * np.abs(left)).any() for held, left in shifts)


def _merge(chain: list[ir.Node], behind: list[ir.Node], constants: Constants) -> bool:
    found = _total(chain)
    dtype = chain[-1].outputs[0].dtype
    if found is None or dtype is None:
        return False
    total, carried = found
    if not (fits(total.scale, dtype) and fits(total.shift, dtype)) or _cancels(total, carried, behind):
        return False
    if (total.scale == 0).any():
        return False
    steps = [(op, array) for op, array, neutral in (("Mul", total.scale, 1.0), ("Add", total.shift, 0.0))
             if (array != neutral).any()]
    largest = max(c.size for node in chain for v in node.inputs if (c := constant_of(v)) is not None)
    if not 0 < len(steps) < len(chain) or any(array.size > largest for _, array in steps):
        return False
    last, value = chain[-1], total.source
    made: list[ir.Node] = []
    for op, array in steps:
        constant = constants.make(f"{last.name}_{op.lower()}", array, dtype)
        node = ir.node(op, [value, constant], name=constants.names.node(f"{last.name}_{op.lower()}"))
        value = node.outputs[0]
        value.name = constants.names.value(f"{last.outputs[0].name}_{op.lower()}")
        value.type, value.shape = last.outputs[0].type, last.outputs[0].shape
        made.append(node)
    last.append(made)
    replace(last.outputs[0], value, constants.model.graph)
    for gone in reversed(chain):
        remove(gone)
    return True
