"""A recurrent operator over one time step becomes its cell: two products and what follows point by point.

    LSTM   [i o f g] = W x + R h + b     c' = sigmoid(f) c + sigmoid(i) tanh(g)     h' = sigmoid(o) tanh(c')
    GRU    [z r]     = W x + R h + b     n  = tanh(Wn x + bn + sigmoid(r) (Rn h + dn))       linear_before_reset
                                         n  = tanh(Wn x + Rn (sigmoid(r) h) + bn + dn)       otherwise
                                         h' = (1 - sigmoid(z)) n + sigmoid(z) h
    RNN    h' = act(W x + R h + b)

by the operators' definitions for a sequence of length 1, which streaming models have: one step of a detector or a
decoder. Products and gates then are ordinary nodes for GEMM and region kernels; ONNX Runtime's operator needs some
11 µs for a step of 128 on 128, which are 131,000 products.

Handles: float32 X [1, B, I] (B may be symbolic) with constant W [1, gI, H], R and B; one direction, which may be
"reverse"; initial states or none; the activations that are the default, and Relu, Sigmoid and Tanh in RNN.

Refused: sequences of any other length or of unknown length; states whose batch may be another than the input's; lengths
per batch entry (they may be 0); bidirectional operators; clipping, peepholes, coupled gates, the batch-first layout,
other activations; weights that are not constant or not finite where a state is absent; matrices so small that ONNX
Runtime's operator is as fast; opsets below 13.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilegraph.io.walk import all_graphs
from tilegraph.ops.prims import Decline
from tilegraph.passes.base import Pass, PassContext, PassResult
from tilegraph.rewrites.algebra.constants import Array, Constants, fits, floats
from tilegraph.rewrites.attention.operators.build import Build
from tilegraph.rewrites.gemm.price import MIN_ELEMENTS, MIN_EXTENT
from tilegraph.rewrites.normalise.edit import is_op
from tilegraph.rewrites.normalise.shapes import Shapes

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_POINTWISE = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}


class RnnStep(Pass):
    name = "rnn-step"

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        constants = Constants(model, context)
        made: dict[tuple[ir.Value, ...], tuple[ir.Value, ...]] = {}
        for graph in all_graphs(model):
            for node in list(graph):
                if not is_op(node, *GATES):
                    continue
                try:
                    _Cell(node, constants, made).rewrite()
                except Decline as reason:
                    context.diagnostics.refused(self.name, node.name or "", reason.reason, op=node.op_type)
                    continue
                context.diagnostics.took(self.name, node.name or "", "one step is its cell", op=node.op_type)
                modified = True
        if modified:
            Shapes().run(model, PassContext())
        return PassResult(modified)


class _Cell:
    """`made`: the matrices and biases that were written for the same weights before (branches share them)."""

    def __init__(self, node: ir.Node, constants: Constants,
                 made: dict[tuple[ir.Value, ...], tuple[ir.Value, ...]]) -> None:
        self.node = node
        self.constants = constants
        self.made = made
        self.build = Build(node, constants.names, constants.model.graph.opset_imports.get("", 1))
        self.activations = self._activations()
        self._examine()

    def _activations(self) -> list[str]:
        given = self.build.attr("activations", None)
        default = _DEFAULTS[self.node.op_type]
        found = default if not given else [str(a).lower() for a in given]
        if found != default and (self.node.op_type != "RNN" or found[0] not in _POINTWISE or len(found) != 1):
            raise Decline(f"its activations are {', '.join(found)}")
        return found

    def _examine(self) -> None:
        b, node = self.build, self.node
        source = b.needed(0, "the sequence")
        if source.dtype != ir.DataType.FLOAT:
            raise Decline("it is not of float32")
        if b.rank(source, "the sequence") != 3 or b.known(source, 0) != 1:
            raise Decline("its sequence is longer than one step, or of unknown length")
        if b.attr("direction", "forward") == "bidirectional":
            raise Decline("it goes in both directions")
        if b.input(4) is not None:
            raise Decline("it has lengths for each entry of the batch, which may be 0")
        if b.input(7) is not None:
            raise Decline("it has peepholes")
        for name, what in (("clip", "it clips"), ("input_forget", "its gates are coupled"),
                           ("layout", "its batch is the first dim")):
            if b.attr(name, 0):
                raise Decline(what)
        if b.attr("activation_alpha", None) or b.attr("activation_beta", None):
            raise Decline("its activations have parameters")
        left, right = floats(b.input(1)), floats(b.input(2))
        bias = None if b.input(3) is None else floats(b.input(3))
        if left is None or right is None or (bias is None and b.input(3) is not None):
            raise Decline("its weights are not constant")
        if left.ndim != 3 or right.ndim != 3 or b.known(source, 2) != left.shape[2]:
            raise Decline("the shapes of its weights do not fit its input")
        for index in (5, 6):
            state = b.input(index)
            if state is not None and (b.rank(state, "a state") != 3 or not b.same(source, 1, state, 1)):
                raise Decline("the batch of its state is not that of its input for certain")
        self.hidden = int(right.shape[2])
        self.left, self.right = left[0], right[0]
        gates = GATES[node.op_type]
        self.bias = np.zeros(2 * gates * self.hidden) if bias is None else bias[0]
        if b.input(5) is None and not (np.isfinite(self.right).all() and np.isfinite(self.bias).all()):
            raise Decline("a weight is not finite, and times a state of 0 it is not 0")
        if min(left.shape[2], self.hidden) < MIN_EXTENT or self.left.size < MIN_ELEMENTS:
            raise Decline(f"its matrix of {list(self.left.shape)} is so small that ONNX Runtime keeps it")

    # -- weights ------------------------------------------------------------------------------------------------------

    def _weights(self) -> tuple[ir.Value, ...]:
        """W [gI, H], R, and two biases: what is added to both products together, and, for the last gate of a GRU, to
        that of the state alone."""
        node = self.node
        key = tuple(v for v in node.inputs[1:4] if v is not None)
        if key not in self.made:
            for index, array in ((1, self.left), (2, self.right)):
                old = node.inputs[index]
                assert old is not None
                reason = self.constants.refusal(node, old, 4 * array.size)
                if reason is not None:
                    raise Decline(reason)
            names = [v.name for v in key]
            both, state = self._biases()
            if not fits(both, ir.DataType.FLOAT):
                raise Decline("its biases overflow when they are added")
            self.constants.replace(node, 1, self.left, ir.DataType.FLOAT)
            self.constants.replace(node, 2, self.right, ir.DataType.FLOAT)
            bias = self.constants.make(f"{names[-1]}_sum", both, ir.DataType.FLOAT)
            more = self.constants.make(f"{names[-1]}_state", state, ir.DataType.FLOAT)
            assert node.inputs[1] is not None
            assert node.inputs[2] is not None
            self.made[key] = node.inputs[1], node.inputs[2], bias, more
        return self.made[key]

    def _biases(self) -> tuple[Array, Array]:
        one, two = np.split(self.bias, 2)
        if self.node.op_type != "GRU" or not self.build.attr("linear_before_reset", 0):
            return one + two, np.zeros(self.hidden)
        last = slice(2 * self.hidden, None)
        both = one + two
        both[last] = one[last]
        return both, two[last]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def rewrite(self) -> None:
        b = self.build
        state, cell = b.input(5), b.input(6) if self.node.op_type == "LSTM" else None
        left, right, bias, more = self._weights()
        zero = b.ints(0)
        x = b.op("Squeeze", b.needed(0, "the sequence"), zero)
        h = None if state is None else b.op("Squeeze", state, zero)
        c = None if cell is None else b.op("Squeeze", cell, zero)
        given = b.op("Gemm", x, left, bias, transB=1)
        if self.node.op_type == "LSTM":
            new, last = self._lstm(given, right, h, c)
        elif self.node.op_type == "GRU":
            new, last = self._gru(given, right, more, h), None
        else:
            total = given if h is None else b.op("Add", b.op("Gemm", h, right, transB=1), given)
            new, last = b.op(_POINTWISE[self.activations[0]], total), None
        results = [b.op("Unsqueeze", new, b.ints(0, 1)) if b.wants(0) else None,
                   b.op("Unsqueeze", new, zero) if b.wants(1) else None,
                   b.op("Unsqueeze", last, zero) if last is not None and b.wants(2) else None]
        b.finish(results, self.constants.model.graph, owned=False)

    def _gate(self, value: ir.Value, index: int) -> ir.Value:
        return self.build.slice(value, 1, index * self.hidden, (index + 1) * self.hidden)

    def _lstm(self, given: ir.Value, right: ir.Value, h: ir.Value | None, c: ir.Value | None) \
            -> tuple[ir.Value, ir.Value]:
        b = self.build
        gates = given if h is None else b.op("Add", b.op("Gemm", h, right, transB=1), given)
        enter, leave, keep = (b.op("Sigmoid", self._gate(gates, k)) for k in range(3))
        new = b.op("Mul", enter, b.op("Tanh", self._gate(gates, 3)))
        if c is not None:
            new = b.op("Add", b.op("Mul", keep, c), new)
        return b.op("Mul", leave, b.op("Tanh", new)), new

    def _gru(self, given: ir.Value, right: ir.Value, more: ir.Value, h: ir.Value | None) -> ir.Value:
        b, size = self.build, self.hidden
        linear = bool(b.attr("linear_before_reset", 0))
        first = b.slice(given, 1, 0, 2 * size)
        added: ir.Value | None = None
        if h is not None and linear:
            whole = b.op("Gemm", h, right, transB=1)
            first = b.op("Add", b.slice(whole, 1, 0, 2 * size), first)
            added = b.op("Add", b.slice(whole, 1, 2 * size, 3 * size), more)
        elif h is not None:
            matrix = self.right
            gates = self.constants.make(f"{right.name}_gates", matrix[:2 * size], ir.DataType.FLOAT)
            first = b.op("Add", b.op("Gemm", h, gates, transB=1), first)
        elif linear:
            added = more
        update, reset = (b.op("Sigmoid", self._gate(first, k)) for k in range(2))
        new = self._gate(given, 2)
        if added is not None:
            new = b.op("Add", b.op("Mul", reset, added), new)
        elif h is not None:
            last = self.constants.make(f"{right.name}_last", self.right[2 * size:], ir.DataType.FLOAT)
            new = b.op("Add", b.op("Gemm", b.op("Mul", reset, h), last, transB=1), new)
        new = b.op("Tanh", new)
        one = b.scalar(1.0, ir.DataType.FLOAT)
        new = b.op("Mul", b.op("Sub", one, update), new)
        return new if h is None else b.op("Add", new, b.op("Mul", update, h))
