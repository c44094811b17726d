"""Inputs that the user gives: what does not fit is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from verify_text import parse

from tilegraph.errors import InputError
from tilegraph.verify.arrays import given_arrays, read_npz

F = np.float32
MODEL = "g (float[n, 4] x, int64[n] i) => (float[n, 4] y) { y = Relu(x) }"
GOOD: dict[str, Any] = {"x": np.zeros((3, 4), F), "i": np.zeros(3, np.int64)}


def inputs(text: str = MODEL) -> list[ir.Value]:
    return list(parse(text).graph.inputs)


def test_names_with_and_without_prefix_and_expected_outputs() -> None:
    arrays = {"in_x": GOOD["x"], "i": GOOD["i"], "out_y": np.ones((3, 4)), "spare": np.ones(1)}
    feeds, expected, notes = given_arrays(arrays, inputs(), ["y"])
    assert sorted(feeds) == ["i", "x"]
    assert expected["y"].sum() == 12
    assert notes == ["the given inputs: not used: 'spare'"]


def test_unknown_extents_fit_every_size() -> None:
    """-1 and "?" are no sizes and no names: two of them need not be equal."""
    (value,) = inputs("g (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }")
    value.shape = ir.Shape([-1, 3, "?", "?"])
    feeds, _, _ = given_arrays({"x": np.zeros((6, 3, 48, 192), F)}, [value], ["y"])
    assert feeds["x"].shape == (6, 3, 48, 192)
    with pytest.raises(InputError, match="wants"):
        given_arrays({"x": np.zeros((6, 4, 48, 192), F)}, [value], ["y"])


def test_an_npz_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **GOOD)
    feeds, _, notes = given_arrays(tmp_path / "a.npz", inputs(), ["y"])
    assert feeds["x"].shape == (3, 4)
    assert not notes


@pytest.mark.parametrize(("change", "told"), [
    ({"i": None}, "no array for input 'i'$"),
    ({"i": None, "idx": np.zeros(3)}, "no array for input 'i'; it has 'idx', which the model does not know"),
    ({"x": np.zeros((3, 5), F)}, r"input 'x' has shape \[3, 5\], the model wants \[n, 4\]"),
    ({"x": np.zeros((3, 4, 1), F)}, r"input 'x' has shape \[3, 4, 1\], the model wants \[n, 4\]"),
    ({"x": np.zeros((2, 4), F)}, r"dim 'n' is 2 in x\[0\] and 3 in i\[0\]"),
    ({"x": np.zeros((3, 4))}, r"input 'x' is float64, the model wants float32: convert it with .astype\('float32'\)"),
    ({"i": np.zeros(3, np.int32)}, "input 'i' is int32, the model wants int64"),
    ({"i": np.array(["a", "b", "c"])}, "input 'i' is strings, the model wants int64"),
])
def test_what_does_not_fit_is_named(change: dict[str, Any], told: str) -> None:
    arrays = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    with pytest.raises(InputError, match=told):
        given_arrays(arrays, inputs(), ["y"])


def test_strings_and_narrow_floats_survive_a_file(tmp_path: Path) -> None:
    text = "g (string[n] s, bfloat16[n] b) => (string[n] y) { y = Identity(s) }"
    np.savez(tmp_path / "a.npz", s=np.array(["é", "b"]), b=np.array([1.5, 2.5], ml_dtypes.bfloat16))
    feeds, _, _ = given_arrays(tmp_path / "a.npz", inputs(text), ["y"])
    assert feeds["s"].dtype == object
    assert feeds["s"].tolist() == ["é", "b"]
    assert feeds["b"].dtype == ml_dtypes.bfloat16
    assert feeds["b"].astype(float).tolist() == [1.5, 2.5]


def test_sequences_by_element() -> None:
    text = "g (seq(float[n]) s) => (float y) { y = Identity(s) }"
    elements = {f"s[{i}]": np.full(i + 1, i, F) for i in (10, 2, 0)}
    feeds, _, _ = given_arrays(elements, inputs(text), [])
    assert [len(e) for e in feeds["s"]] == [1, 3, 11]


@pytest.mark.parametrize(("content", "told"), [
    (None, "no such file"), (b"nothing", "not an .npz file; save named arrays"), (b"", "not an .npz file"),
    (b"PK\x03\x04broken", "not an .npz file"),
])
def test_files_that_are_not_npz(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=told):
        read_npz(path)


def test_a_bare_array_and_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(InputError, match="one bare array"):
        read_npz(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="not a readable"):
        read_npz(tmp_path / "b.npz")


def test_nudged_inputs_are_the_neighbours_and_nothing_else() -> None:
    from tilegraph.verify.inputs import nudged

    x = np.array([1.0, -2.5, 0.0, np.inf, np.nan, 3e-39], np.float32)
    feeds = {"x": np.tile(x, 50), "ids": np.arange(5)}
    moved = nudged(feeds)
    assert moved["ids"] is feeds["ids"]
    steps = moved["x"].view(np.int32).astype(np.int64) - feeds["x"].view(np.int32)
    kept = np.tile([False, False, True, True, True, False], 50)
    assert (steps[kept] == 0).all()
    assert set(steps[~kept]) == {-1, 1}
    assert moved["x"].dtype == np.float32


def test_shrunk_inputs_are_smaller_by_up_to_a_hundredth_and_integers_stay() -> None:
    from tilegraph.verify.inputs import shrunk

    x = np.tile(np.array([1.0, -10000.0, 0.0, np.inf, np.nan, 0.5, -2.75], np.float32), 50)
    feeds = {"x": x, "ids": np.arange(5)}
    moved = shrunk(feeds, seed=1)
    assert moved["ids"] is feeds["ids"]
    assert moved["x"].dtype == np.float32
    kept = np.tile([True] * 5 + [False] * 2, 50)
    np.testing.assert_array_equal(moved["x"][kept], x[kept])
    ratio = moved["x"][~kept] / x[~kept]
    assert ((ratio >= 0.99) & (ratio <= 1)).all()
    assert np.ptp(ratio) > 0.005


def test_an_input_with_a_default_may_be_given_or_left_out() -> None:
    value = ir.Value(name="s", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64),
                     const_value=ir.tensor(np.array([0])))
    ir.Graph([value], [], nodes=[], initializers=[value])
    assert given_arrays({}, [value], []) == ({}, {}, [])
    assert given_arrays({"s": np.array([2])}, [value], [])[0]["s"] == [2]
    with pytest.raises(InputError, match="'s'"):
        given_arrays({"s": np.array([2.0])}, [value], [])
