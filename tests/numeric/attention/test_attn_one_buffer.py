"""GroupQueryAttention with one longer buffer for past and present, and sequences of several lengths: the kernel runs,
against ONNX Runtime's own. What lies behind a sequence is NaN here, and must not be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.numeric.attention.test_attn_group_past import Array, D, N, Pair, feeds_of, model, sessions

_BUFFERS = (("pk", "nk"), ("pv", "nv"))
_RUNS = [(24, 1, [12]), (24, 1, [24]), (30, 1, [12, 7, 24]), (24, 1, [1, 20]), (24, 9, [9]), (24, 9, [9, 5]),
         (140, 5, [112])]


def feeds_for(rows: int, new: int, lengths: list[int], **form: Any) -> dict[str, Array]:
    """A run of `new` tokens each, after which sequences have `lengths`, in buffers of so many `rows`."""
    feeds = feeds_of(rows, new, batch=len(lengths), **form)
    begin = np.array([0 if new == max(lengths) else length - new for length in lengths])
    for buffer in ("pk", "pv"):
        for sequence, first in enumerate(begin):
            feeds[buffer][sequence, :, first:] = np.nan
    return feeds | {"last": np.array(lengths, np.int32) - 1, "total": np.array(max(lengths), np.int32)}


def _run(session: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    found: list[Array] = session.run(None, feeds)
    return found


def run_in_place(session: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    binding = session.io_binding()
    buffers = {n: ort.OrtValue.ortvalue_from_numpy(feeds[n].copy()) for n, _ in _BUFFERS}
    binding.bind_output("o")
    for name in feeds.keys() - buffers.keys():
        binding.bind_cpu_input(name, feeds[name])
    for name, output in _BUFFERS:
        binding.bind_ortvalue_input(name, buffers[name])
        binding.bind_ortvalue_output(output, buffers[name])
    session.run_with_iobinding(binding)
    return [binding.get_outputs()[0].numpy().copy(), *(b.numpy().copy() for b in buffers.values())]


def check(pair: Pair, feeds: dict[str, Array], lengths: list[int]) -> None:
    """Equal within rounding, present bit by bit, in one buffer and in two."""
    new = next(feeds[n] for n in ("q", "qkv") if n in feeds).shape[1]
    for run in (run_in_place, _run):
        (want, *caches), (got, *made) = (run(session, feeds) for session in pair)
        same = []
        for sequence, length in enumerate(lengths):
            there = min(new, length)  # rows behind are padding, of which the operator says nothing
            one, other = want[sequence, :there], got[sequence, :there]
            assert np.std(one) > 0
            assert np.abs(one - other).max() <= 4e-6 * max(1.0, float(np.abs(one).max()))
            same.append(np.array_equal(one, other))
            for before, after in zip(caches, made, strict=True):
                kept = slice(None) if there == new else slice(0, there)
                np.testing.assert_array_equal(before[sequence, :, kept], after[sequence, :, kept])
        assert not all(same) or max(lengths) == 1  # the kernel ran, whose sums are in another order


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return sessions(model(feeds_of(5, 1, half=D // 2) | _tables(0)), tmp_path_factory.mktemp("turned"))


@pytest.mark.parametrize(("rows", "new", "lengths"), _RUNS)
def test_lengths(turned: Pair, rows: int, new: int, lengths: list[int]) -> None:
    check(turned, feeds_for(rows, new, lengths) | _tables(rows), lengths)


def _tables(rows: int) -> dict[str, Array]:
    angles = np.random.default_rng(rows).standard_normal((160, D // 2)).astype(np.float32)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


@pytest.mark.parametrize(("form", "attributes", "more"), [
    ({"packed": True}, {"local_window_size": 4, "smooth_softmax": 1}, {}),
    ({}, {"softcap": 2.0, "local_window_size": 3}, {"sink": np.linspace(-2, 2, N, dtype=np.float32)}),
    ({"packed": True, "half": D // 4}, {"rotary_interleaved": 1}, {"ids": None}),
])
def test_forms(form: dict[str, Any], attributes: dict[str, Any], more: dict[str, Any], tmp_path: Path) -> None:
    """Windows, soft caps, sinks and positions that the caller gives; `present` is declared as long as the past."""
    def full(rows: int, new: int, lengths: list[int]) -> dict[str, Array]:
        ids = np.arange(new)[None] * 2 + np.arange(len(lengths))[:, None]
        return feeds_for(rows, new, lengths, **form) | {n: ids if v is None else v for n, v in more.items()}

    pair = sessions(model(full(5, 1, [5]), present="p", **attributes), tmp_path)
    for rows, new, lengths in ((24, 1, [12, 7]), (24, 9, [9])):
        check(pair, full(rows, new, lengths), lengths)


def test_only_new_rows_are_written(turned: Pair) -> None:
    feeds = feeds_of(24, 1) | _tables(24) | {"last": np.array([11], np.int32), "total": np.array(12, np.int32)}
    _, keys, values = run_in_place(turned[1], feeds)
    for name, after in (("pk", keys), ("pv", values)):
        assert list(np.flatnonzero(np.abs(after - feeds[name]).max(axis=(0, 1, 3)) > 0)) == [11]


def test_hidden_keys_are_read_unless_they_are_trusted(tmp_path: Path) -> None:
    """0 times infinity is NaN, also for a value that no query sees; with --trust-hidden it is not looked at."""
    form: dict[str, Any] = {"local_window_size": 20}
    clean = feeds_for(300, 1, [290])
    odd = clean | {"pv": clean["pv"].copy()}
    odd["pv"][0, :, 100, 3] = np.inf
    for trust in (False, True):
        folder = tmp_path / str(trust)
        folder.mkdir()
        pair = sessions(model(clean, present="p", **form), folder, trust_hidden=trust)
        check(pair, clean, [290])
        want, got = (run_in_place(session, odd)[0] for session in pair)
        assert np.isnan(want).any()
        if trust:
            assert np.array_equal(got, run_in_place(pair[1], clean)[0])
        else:
            assert np.array_equal(np.isnan(want), np.isnan(got))


def test_sixteen_bits(tmp_path: Path) -> None:
    """Computed in float32 and rounded once, as the operator does; `present` is the same bits."""
    def halves(feeds: dict[str, Array]) -> dict[str, Array]:
        return {n: v.astype(np.float16) if v.dtype == np.float32 else v for n, v in feeds.items()}

    form: dict[str, Any] = {"half": D // 2}
    pair = sessions(model(halves(feeds_of(5, 1, **form)), local_window_size=8), tmp_path)
    inside = feeds_for(24, 1, [12, 7], **form)
    for run, feeds in ((_run, feeds_of(9, 2, **form)), (_run, feeds_of(0, 9, **form)), (_run, inside),
                       (run_in_place, inside)):
        (want, *caches), (got, *made) = (run(session, halves(feeds)) for session in pair)
        assert np.std(want.astype(np.float32)) > 0
        assert np.abs(want.astype(np.float32) - got.astype(np.float32)).max() <= 2e-3
        for one, other in zip(caches, made, strict=True):
            np.testing.assert_array_equal(one, other)
