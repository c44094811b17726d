"""Chains of scales and shifts become one Mul and one Add, where that makes fewer nodes.

    s2 (s1 x + t1) + t2  =  (s1 s2) x + (s2 t1 + t2)

Equal in exact arithmetic. In floating point a product of scales and a sum of shifts are rounded once (from float64), so
there are fewer roundings; but s x can cancel against the first shifts, and what is added behind them then lost its
digits: (1 - mask) * -1e4 + bias is the bias where the mask is 1, and mask * 1e4 + (bias - 1e4) has four digits of it. A
chain is merged only if the shifts up to any node, summed, do not exceed four times the sum of those behind it, element
by element, or there are none behind it: the error is then at most 4 eps of what is left. The same holds at the end of
every node behind a part of a chain that is merged alone: another run of this pass would not know what it was made of.

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


def _total(chain: list[ir.Node]) -> Affine | None:
    steps = [affine_of(node, norms=False) for node in chain]
    total = steps[0]
    for step in steps[1:]:
        total = None if total is None or step is None else total.then(step.scale, step.shift)
    return total


def _cancels(chain: list[ir.Node], behind: list[ir.Node]) -> bool:
    """Whether too little is added to the first shifts of `chain`, at its end or at that of a node behind it."""
    sums: list[tuple[Array, Array]] = []  # up to a node of the chain and behind it, in terms of the last result
    total = np.zeros(())
    for number, node in enumerate((*chain, *behind), 1):
        step = affine_of(node, norms=False)
        if step is None:
            return False
        sums = [(step.scale * first, step.scale * left + step.shift) for first, left in sums]
        total = step.scale * total + step.shift
        if number >= len(chain) and any(_lost(first, left) for first, left in sums):
            return True
        if number < len(chain):
            sums.append((total, np.zeros(())))
    return False


def _lost(cancelled: Array, left: Array) -> bool:
    return bool(((left != 0) & (np.abs(cancelled) > _CARRIED * np.abs(left))).any())


def _merge(chain: list[ir.Node], behind: list[ir.Node], constants: Constants) -> bool:
    total = _total(chain)
    dtype = chain[-1].outputs[0].dtype
    if total is None or dtype is None:
        return False
    if not (fits(total.scale, dtype) and fits(total.shift, dtype)) or _cancels(chain, behind):
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
