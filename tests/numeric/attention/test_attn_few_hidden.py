"""Keys that no query of a decoder's step sees, as outside of a window, are looked through and not computed."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir
import pytest

from tests.numeric.attention.attn_runner import compile_attention, run
from tests.numeric.attention.test_attn_few import answer, check, decoder, inputs
from tests.numeric.codegen.runner import Array, Compiled
from tilegraph.codegen.attention.bounds import conditions
from tilegraph.codegen.attention.odd import few_skips
from tilegraph.ops.attention import AttentionSpace

LOWEST = float(np.finfo(np.float32).min)


@cache
def kernel(mask: str, queries: int) -> tuple[Compiled, AttentionSpace, ir.Model]:
    return compile_attention(decoder(8, 2, queries, 700, 16, 16, mask=mask))


def hidden(mask: str, queries: int, low: float, shown: slice) -> dict[str, Array]:
    feeds = inputs(8, 2, queries, 700, 16, 16, mask)
    if mask == "padding":
        feeds["m"] = np.zeros_like(feeds["m"])
        feeds["m"][..., shown] = True
    else:
        kept = feeds["m"][..., shown].copy()
        feeds["m"] = np.full_like(feeds["m"], low)
        feeds["m"][..., shown] = kept
    return feeds


@pytest.mark.parametrize(("mask", "low"), [("padding", -np.inf), ("bias", -np.inf), ("bias", LOWEST), ("bias", -1e9)])
@pytest.mark.parametrize("shown", [slice(0, 70), slice(300, 301)])
def test_few_of_the_keys_are_seen(mask: str, low: float, shown: slice) -> None:
    compiled, space, graph = kernel(mask, 3)
    assert few_skips(space)
    feeds = hidden(mask, 3, low, shown)
    want = answer(feeds)
    for tasks in (1, 4):
        assert np.abs(run(compiled, graph, feeds, tasks) - want).max() <= 2e-6 * float(np.abs(want).max())


def test_a_run_decides() -> None:
    model = decoder(8, 2, 1, 1, 16, 16, symbolic=True, mask="bias")
    for queries in (3, 20):
        check(model, hidden("bias", queries, -np.inf, slice(444, 700)), few=None)


@pytest.mark.parametrize("low", [-np.inf, LOWEST])
def test_a_row_that_sees_nothing(low: float) -> None:
    """Minus infinity leaves NaN, the lowest float the mean of all values."""
    feeds = hidden("bias", 2, low, slice(0, 70))
    feeds["m"][1, 0, 1] = low
    compiled, _, graph = kernel("bias", 2)
    with np.errstate(all="ignore"):
        want = answer(feeds)
    for tasks in (1, 4):
        got = run(compiled, graph, feeds, tasks)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.isnan(want[1, :, 1]).all() == (low == -np.inf)
        finite = np.isfinite(want)
        assert np.abs(got - want)[finite].max() <= 4e-6


@pytest.mark.parametrize("mask", ["padding", "bias"])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e20])
def test_what_hidden_keys_and_values_hold(mask: str, which: str, value: float) -> None:
    """0 times infinity is NaN in the whole matrix, so it is here."""
    feeds = hidden(mask, 2, -np.inf, slice(0, 70))
    feeds[which][0, 1, 1 if which == "q" else 600, 3] = value
    compiled, _, graph = kernel(mask, 2)
    with np.errstate(all="ignore"):
        want = answer(feeds)
    got = run(compiled, graph, feeds, 2)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    assert finite.any()
    assert np.abs(got - want)[finite].max() <= 2e-6 * max(1.0, float(np.abs(want[finite]).max()))


def test_a_mask_of_each_head_leaves_nothing_out() -> None:
    model = decoder(8, 2, 3, 700, 16, 16, mask="bias")
    for info in model.graph.input:
        if info.name == "m":
            info.type.tensor_type.shape.dim[1].dim_value = 8
    assert not few_skips(compile_attention(model)[1])


@pytest.mark.parametrize(("chosen", "shows"), [("m x0 low", True), ("m low x0", False)])
def test_which_side_of_a_choice_shows_a_key(chosen: str, shows: bool) -> None:
    """A block of which a condition holds nowhere needs no predicate either, where it chooses what hides."""
    model = decoder(4, 2, 20, 90, 16, 16, mask="padding")
    (choice,) = [n for n in model.graph.node if n.op_type == "Where"]
    choice.input[:] = chosen.split()
    compiled, space, graph = compile_attention(model)
    assert [side for _, side in conditions(space)] == [shows]
    feeds = inputs(4, 2, 20, 90, 16, 16, "padding")
    want = answer(feeds)
    feeds["m"] = feeds["m"] == shows
    assert np.abs(run(compiled, graph, feeds) - want).max() <= 2e-6 * float(np.abs(want).max())
