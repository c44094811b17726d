"""Extents are read off graph inputs where they have them."""

from __future__ import annotations

import numpy as np
from norm_check import prepared, run

from tilegraph.rewrites.normalise import ShapeSources

READ = """g (int64[B, S] ids, float[16, 8] table) => (int64 t, float[B, S, 8] y) {
    at = Constant <value = int64 {%d}> ()
    e = Gather <axis = 0> (table, ids)  y = Neg(e)  s = Shape(y)  t = Gather <axis = 0> (s, at) }"""
FEEDS = {"ids": np.zeros((3, 5), np.int64), "table": np.ones((16, 8), np.float32)}


def test_a_symbolic_extent_moves_to_the_input() -> None:
    model = run(ShapeSources(), prepared(READ % 1), modified=True, feeds=FEEDS)
    extent = next(o for o in model.graph.outputs if o.name == "t").producer()
    assert extent is not None
    shape = extent.inputs[0].producer()  # type: ignore[union-attr]
    assert shape is not None
    assert shape.op_type == "Shape"
    assert shape.inputs[0] is model.graph.inputs[0]


def test_a_negative_position_counts_from_the_end() -> None:
    run(ShapeSources(), prepared(READ % -2), modified=True, feeds=FEEDS)


def test_a_number_is_left_to_folding() -> None:
    run(ShapeSources(), prepared(READ % 2), modified=False, feeds=FEEDS)


def test_shapes_of_inputs_and_several_elements_stay() -> None:
    run(ShapeSources(), prepared("""g (float[B, S] x) => (int64 t) {
        at = Constant <value = int64 {0}> ()  s = Shape(x)  t = Gather <axis = 0> (s, at) }"""), modified=False)
    run(ShapeSources(), prepared("""g (float[B, S] x) => (int64[2] t) {
        at = Constant <value = int64[2] {0, 1}> ()
        y = Neg(x)  s = Shape(y)  t = Gather <axis = 0> (s, at) }"""), modified=False)


def test_an_extent_that_no_input_has_by_itself_stays() -> None:
    run(ShapeSources(), prepared("""g (float[B, S] x) => (int64 t) {
        at = Constant <value = int64 {0}> ()
        y = Concat <axis = 0> (x, x)  s = Shape(y)  t = Gather <axis = 0> (s, at) }"""), modified=False)


def test_a_sum_of_extents_is_added_up() -> None:
    """The length of a key cache with the new keys in it."""
    text = """g (float[B, P] past, float[B, S] new) => (int64%s t, float[B, T] y) {
        at = Constant <value = int64%s {1}> ()
        k = Concat <axis = 1> (past, new)  y = Neg(k)  s = Shape(y)  t = Gather <axis = 0> (s, at) }"""
    feeds = {"past": np.ones((3, 4), np.float32), "new": np.ones((3, 5), np.float32)}
    for form in ("", "[1]"):
        model = run(ShapeSources(), prepared(text % (form, form)), modified=True, feeds=feeds)
        shapes = [n.inputs[0] for n in model.graph if n.op_type == "Shape"]
        assert set(shapes) >= set(model.graph.inputs)
        assert next(o for o in model.graph.outputs if o.name == "t").producer().op_type == "Add"  # type: ignore[union-attr]
