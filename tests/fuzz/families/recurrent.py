"""LSTM, GRU and RNN, with results that nobody asks for, and convolutions in time beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(g: Graph) -> None:
    """Over the first axis of something [steps, batch, width], in either direction or both, from a state or none."""
    x = g.pick("f", 3)
    if x is None or g.values[x].ndim != 3 or g.values[x].dtype != np.float32 or not g.values[x].size:
        return
    if not g.finite(x, 100):
        return
    steps, batch, width = g.values[x].shape
    op, hidden = str(g.rng.choice(list(GATES))), int(g.rng.choice([1, 4, 8]))
    direction = str(g.rng.choice(["forward", "forward", "reverse", "bidirectional"]))
    ways, gates = 2 if direction == "bidirectional" else 1, GATES[op]

    def const(*shape: int) -> str:
        return g.const(g.rng.standard_normal(shape) / np.sqrt(max(shape[-1], 1)), np.float32)

    inputs = [x, const(ways, gates * hidden, width), const(ways, gates * hidden, hidden),
              const(ways, 2 * gates * hidden) if g.rng.random() < 0.7 else ""]
    if g.rng.random() < 0.5:
        lengths = g.const(g.rng.integers(1, steps + 1, size=batch), np.int32) if g.rng.random() < 0.4 else ""
        inputs += [lengths, const(ways, batch, hidden)]
        if op == "LSTM" and g.rng.random() < 0.7:
            inputs.append(const(ways, batch, hidden))
    while inputs[-1] == "":
        inputs.pop()
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" and g.rng.random() < 0.5 else {}
    kept = [[True], [True, True], [False, True], [True, True, True], [False, False, True]]
    outputs = kept[int(g.rng.integers(5 if op == "LSTM" else 3))]
    if g.add(op, inputs, outputs, hidden_size=hidden, direction=direction, **more) and outputs[0]:
        y = g.outs[0]
        if ways == 1 and g.rng.random() < 0.6 and g.opset >= 13:
            flat = g.put("Squeeze", [y, g.const([1], np.int64)])
            if flat:
                g.put("MatMul", [flat, const(hidden, width)])


STEPS = (recurrent,)
