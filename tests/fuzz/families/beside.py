"""What holds no numbers beside what does: sequences, optionals, strings; they pass through, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph


def sequence(g: Graph) -> None:
    """Values in a sequence, read by their places or joined; or a value taken apart into one."""
    x = g.pick("f", 1)
    if x is None or g.opset < 11 or not g.values[x].size:
        return
    y, kind = g.alike(x), int(g.rng.integers(3))
    s, (made,) = g.fresh(), g.results(1)
    if kind == 0:
        nodes = [helper.make_node("SequenceConstruct", [x, y], [s]),
                 helper.make_node("SequenceAt", [s, g.const(int(g.rng.integers(-2, 2)), np.int64)], [made])]
    elif kind == 1:
        nodes = [helper.make_node("SplitToSequence", [x], [s], axis=0, keepdims=1),
                 helper.make_node("ConcatFromSequence", [s], [made], axis=int(g.values[x].ndim > 1))]
    else:
        e, t = g.fresh(), g.fresh()
        nodes = [helper.make_node("SequenceEmpty", [], [e],
                                  dtype=int(helper.np_dtype_to_tensor_dtype(g.values[x].dtype))),
                 helper.make_node("SequenceInsert", [e, x], [t]), helper.make_node("SequenceInsert", [t, x], [s]),
                 helper.make_node("ConcatFromSequence", [s], [made], axis=0, new_axis=1)]
    if g.together(nodes, [made]):
        g.put("Tanh", [made])


def optional(g: Graph) -> None:
    x = g.pick("f", 1)
    if x is None or g.opset < 18:
        return
    held, (made,) = g.fresh(), g.results(1)
    if g.together([helper.make_node("Optional", [x], [held]),
                   helper.make_node("OptionalGetElement", [held], [made])], [made]):
        g.put("Sigmoid", [made])


def text(g: Graph) -> None:
    """Numbers as strings and back: kernels before and behind."""
    x = g.pick("i", 1)
    if x is None or g.opset < 9:
        return
    words, (made,) = g.fresh(), g.results(1)
    kind = helper.np_dtype_to_tensor_dtype(g.values[x].dtype)
    if g.together([helper.make_node("Cast", [x], [words], to=8), helper.make_node("Cast", [words], [made], to=kind)],
                  [made]):
        g.put("Add", [made, x])


STEPS = (sequence, optional, text)
