"""Few queries on keys that tasks cut into pieces: any number of tasks gives the same result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.numeric.attention.attn_runner import check_fences, compile_attention, run
from tests.numeric.attention.test_attn_few import answer, check, decoder, inputs


@pytest.mark.parametrize(("heads", "groups", "queries", "keys", "width"), [
    (8, 1, 1, 4100, 64), (8, 1, 1, 256, 64), (8, 2, 3, 700, 20), (32, 1, 1, 1100, 128), (5, 1, 7, 333, 33)])
@pytest.mark.parametrize("tasks", [1, 2, 3, 64])
def test_every_split(heads: int, groups: int, queries: int, keys: int, width: int, tasks: int) -> None:
    model = decoder(heads, groups, queries, keys, 32, width)
    assert compile_attention(model)[1].pieces == heads // groups
    check(model, inputs(heads, groups, queries, keys, 32, width), few=True, tasks=tasks)


@pytest.mark.parametrize("mask", ["bias", "padding"])
def test_pieces_without_a_visible_key(mask: str) -> None:
    """A row needs one visible key, wherever it is; of a row without any nothing is left but NaN."""
    model = decoder(4, 1, 2, 600, 16, 16, mask=mask)
    feeds = inputs(4, 1, 2, 600, 16, 16, mask)
    feeds["m"] = feeds["m"].copy()
    shown = feeds["m"][..., 450:451].copy()
    feeds["m"][...] = -np.inf if mask == "bias" else False
    feeds["m"][..., 450:451] = shown if mask == "bias" else True
    check(model, feeds, few=True, tasks=4)
    feeds["m"][1] = -np.inf if mask == "bias" else False
    compiled, _, graph = compile_attention(model)
    got = run(compiled, graph, feeds, 4)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


@pytest.mark.parametrize("tasks", [1, 2, 64])
def test_a_sink_counts_once(tasks: int) -> None:
    model = decoder(8, 2, 3, 700, 32, 20, mask="sink")
    assert compile_attention(model)[1].pieces == 4
    check(model, inputs(8, 2, 3, 700, 32, 20, "sink"), few=True, tasks=tasks)


@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("everywhere", [False, True])
def test_special_values(which: str, value: float, everywhere: bool) -> None:
    compiled, space, graph = compile_attention(decoder(4, 2, 2, 300, 16, 16))
    assert space.pieces == 2
    feeds = inputs(4, 2, 2, 300, 16, 16)
    feeds[which][0, 1, slice(None) if everywhere else 1, 3] = value
    with np.errstate(all="ignore"):
        want = answer(feeds)
    for tasks in (1, 4):
        got = run(compiled, graph, feeds, tasks)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        finite = np.isfinite(want)
        assert finite.any()
        assert np.array_equal(got[~finite], want[~finite].astype(np.float32), equal_nan=True)
        assert np.abs(got[finite] - want[finite]).max() <= 2e-6 * 8


def test_pieces_are_not_made_where_there_is_other_work() -> None:
    space = compile_attention(decoder(8, 1, 1, 4096, 32, 32))[1]
    assert space.pieces == 8
    assert compile_attention(decoder(16, 8, 1, 4096, 32, 32))[1].pieces == 1
    assert replace(space, guarded=True).pieces == 1
    assert compile_attention(decoder(8, 1, 1, 255, 32, 32))[1].pieces == 1
    assert compile_attention(decoder(8, 8, 1, 4096, 32, 32))[1].pieces == 1


def test_no_keys() -> None:
    """A sum over nothing, whoever adds it up."""
    compiled, space, graph = compile_attention(decoder(8, 2, 1, 1, 16, 16, symbolic=True))
    assert space.pieces == 4
    for queries in (1, 20):
        assert not run(compiled, graph, inputs(8, 2, queries, 0, 16, 16), 2).any()


def test_no_memory_beside_the_operands_is_touched() -> None:
    compiled, space, graph = compile_attention(decoder(4, 1, 1, 300, 16, 20))
    assert space.pieces == 4
    check_fences(compiled, graph, inputs(4, 1, 1, 300, 16, 20), 3)
