"""Recurrent operators of one step: each operator, what it may lack, and near misses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algebra_check import kept, rewritten, values

from tilegraph.rewrites.algebra import RnnStep

STEP = RnnStep()
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE, H = 64, 64
DECAY = 0.1  # weights so small that no gate is at its end


def weights(op: str) -> dict[str, np.ndarray[Any, Any]]:
    g = GATES[op]
    return {"w": DECAY * values(1, g * H, SIZE, seed=1), "r": DECAY * values(1, g * H, H, seed=2),
            "b": values(1, 2 * g * H, seed=3)}


def graph(op: str, states: str, *, attributes: str = "", shape: str = f"1, 3, {SIZE}", batch: str = "3",
          bias: str = "b", extra: str = "", more: str = "") -> str:
    outputs = ["y", "h2"] + (["c2"] if op == "LSTM" else [])
    types = [f"T[1, 1, {batch}, {H}] y", f"T[1, {batch}, {H}] h2", f"T[1, {batch}, {H}] c2"][:len(outputs)]
    given = [f"T[{shape}] x", *(f"T[1, {batch}, {H}] {s}" for s in states.split(", ") if s)]
    given += [extra] if extra else []
    lens = extra.split(" ")[-1] if extra else ""
    read = f"{op} <hidden_size = {H}{attributes}> (x, w, r, {bias}, {lens}, {states}{more})"
    return f"g ({', '.join(given)}) => ({', '.join(types)}) {{ {', '.join(outputs)} = {read} }}"


FEEDS = {"x": values(1, 3, SIZE, seed=7), "h": values(1, 3, H, seed=8), "c": values(1, 3, H, seed=9)}


@pytest.mark.parametrize(("op", "states", "attributes", "bias"), [
    ("LSTM", "h, c", "", "b"),
    ("LSTM", "h, c", "", ""),
    ("LSTM", "", "", "b"),
    ("GRU", "h", "", "b"),
    ("GRU", "h", ", linear_before_reset = 1", "b"),
    ("GRU", "h", ", linear_before_reset = 1", ""),
    ("GRU", "", ", linear_before_reset = 1", "b"),
    ("GRU", "", "", "b"),
    ("RNN", "h", "", "b"),
    ("RNN", "", "", "b"),
])
def test_rewritten(op: str, states: str, attributes: str, bias: str) -> None:
    feeds = {k: v for k, v in FEEDS.items() if k == "x" or k in states}
    found = rewritten(STEP, graph(op, states, attributes=attributes, bias=bias), feeds=feeds, kinds=("float",),
                      rtol=2e-6, **weights(op))
    assert op not in found
    assert found.count("Gemm") == (1 if not states else 3 if op == "GRU" and not attributes else 2)


def test_a_symbolic_batch() -> None:
    text = graph("LSTM", "h, c", shape=f"1, N, {SIZE}", batch="N")
    assert "LSTM" not in rewritten(STEP, text, feeds=FEEDS, kinds=("float",), rtol=2e-6, **weights("LSTM"))


@pytest.mark.parametrize("text", [
    graph("LSTM", "h, c", shape=f"2, 3, {SIZE}").replace("T[1, 1, 3", "T[2, 1, 3"),
    graph("LSTM", "h, c", shape=f"S, 3, {SIZE}").replace("T[1, 1, 3", "T[S, 1, 3"),
    graph("LSTM", "h, c", batch="N"),  # three rows of input, and a state of N
    graph("LSTM", "h, c", attributes=", clip = 3.0"),
    graph("LSTM", "h, c", attributes=", input_forget = 1"),
    graph("LSTM", "h, c", attributes=', activations = ["Sigmoid", "Relu", "Tanh"]'),
    graph("LSTM", "h, c", extra="int32[3] n"),
    graph("LSTM", "h, c", more=", p"),
])
def test_kept(text: str) -> None:
    kept(STEP, text, **weights("LSTM"), p=values(1, 3 * H))


def test_other_types_opsets_and_sizes_are_kept() -> None:
    kept(STEP, graph("LSTM", "h, c"), kind="double", **weights("LSTM"))
    kept(STEP, graph("LSTM", "h, c"), opset=12, **weights("LSTM"))
    both = {k: np.concatenate([v, v]) for k, v in weights("LSTM").items()}
    text = graph("LSTM", "h, c", attributes=', direction = "bidirectional"').replace("[1, 1, 3", "[1, 2, 3")
    kept(STEP, text.replace(f"T[1, 3, {H}]", f"T[2, 3, {H}]").replace("T[2, 3, 64] x", "T[1, 3, 64] x"), **both)
    small = {"w": values(1, 32, 8), "r": values(1, 32, 8), "b": values(1, 64)}
    kept(STEP, "g (T[1, 3, 8] x) => (T[1, 1, 3, 8] y) { y = LSTM <hidden_size = 8> (x, w, r, b) }", **small)


def test_weights_that_are_computed_or_not_finite_are_kept() -> None:
    text = f"g (T[1, 3, {SIZE}] x, T[1, {4 * H}, {SIZE}] w) => (T[1, 1, 3, {H}] y) " \
           f"{{ y = LSTM <hidden_size = {H}> (x, w, r, b) }}"
    found = weights("LSTM")
    kept(STEP, text, r=found["r"], b=found["b"])
    found["r"][0, 0, 0] = np.inf
    kept(STEP, graph("LSTM", ""), **found)
