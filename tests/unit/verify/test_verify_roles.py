"""Roles of inputs, and the values that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from verify_text import parse

from tilegraph.errors import InputError, UsageError
from tilegraph.verify.inputs import InputMaker, accepted_inputs
from tilegraph.verify.roles import Kind, Role, find_role

F = np.float32
TABLE = np.zeros((50, 4), F)
SMALL = np.zeros((20, 4), F)


def role(text: str, name: str, **weights: np.ndarray[Any, Any]) -> Role:
    model = parse(text, **weights)
    return find_role(next(v for v in model.graph.inputs if v.name == name))


def values(text: str, name: str, sample: int = 1, dims: dict[str, int] | None = None,
           **weights: np.ndarray[Any, Any]) -> Any:
    maker = InputMaker(parse(text, **weights), dims)
    return maker.make(0, sample, maker.bindings(0, sample)[0])[name]


@pytest.mark.parametrize("path", [
    "y = Gather(T, x)", "c = Cast<to = 6>(x)\n y = Gather(T, c)", "u = Unsqueeze(x, zero)\n y = Gather(T, u)",
    "f = Flatten(x)\n s = Slice(f, zero, one)\n y = Gather(T, s)",
    "y = GatherElements(T, x)", "h = OneHot(x, depth, pair)\n y = Cast<to = 1>(h)",
])
def test_indices_are_found_behind_views(path: str) -> None:
    weights = {"T": TABLE, "zero": np.array([0]), "one": np.array([1]), "depth": np.array([50]),
               "pair": np.array([0, 1], F)}
    text = f"g (int64[n, s] x) => (float y) {{ {path} }}"
    assert role(text, "x", **weights).kind is Kind.INDEX
    got = values(text, "x", dims={"n": 40, "s": 40}, **weights)
    assert got.min() >= 0
    assert 40 < got.max() < 50


def test_the_smallest_table_bounds_an_index() -> None:
    text = "g (int64[n] x) => (float[n, 4] y) { a = Gather(T, x)\n b = Gather(S, x)\n y = Add(a, b) }"
    assert values(text, "x", dims={"n": 500}, T=TABLE, S=SMALL).max() == 19


def test_an_offset_before_the_lookup_moves_the_bound() -> None:
    text = "g (int64[n, s] position_ids) => (float y) { p = Add(position_ids, two)\n y = Gather(S, p) }"
    found = role(text, "position_ids", S=SMALL, two=np.array(2))
    assert (found.kind, [str(r) for r in found.rows]) == (Kind.POSITION, ["18"])
    got = values(text, "position_ids", dims={"s": 100}, S=SMALL, two=np.array(2))
    assert got[0, :4].tolist() == [0, 1, 2, 3]
    assert got.max() == 17


def test_a_subtraction_before_the_lookup_keeps_indices_positive() -> None:
    text = "g (int64[n] x) => (float y) { p = Sub(x, five)\n y = Gather(S, p) }"
    got = values(text, "x", dims={"n": 300}, S=SMALL, five=np.array(5))
    assert (got.min(), got.max()) == (5, 24)


def test_labels_are_below_the_number_of_classes() -> None:
    text = "g (float[n, 7] scores, int64[n] labels) => (float l) { l = SoftmaxCrossEntropyLoss(scores, labels) }"
    assert values(text, "labels", dims={"n": 200}).max() == 6


def test_captured_inputs_are_followed_into_bodies() -> None:
    text = """g (int64[n] x, bool c) => (float[n, 4] y) {
        y = If (c) <then_branch = t () => (float[n, 4] a) { a = Gather(T, x) },
                    else_branch = e () => (float[n, 4] b) { b = Gather(S, x) }> }"""
    assert sorted(str(r) for r in role(text, "x", T=TABLE, S=SMALL).rows) == ["20", "50"]
    assert role(text, "c", T=TABLE, S=SMALL).kind is Kind.CONDITION


@pytest.mark.parametrize(("name", "dtype", "body", "kind"), [
    ("attention_mask", "int64", "y = Cast<to = 1>(x)", Kind.MASK),
    ("x", "int64", "c = Cast<to = 1>(x)\n y = Sub(one, c)", Kind.MASK),
    ("key_padding_mask", "bool", "y = Where(x, one, two)", Kind.PADDING_MASK),
    ("mask", "float", "y = Add(x, data)", Kind.ADDITIVE_MASK),
    ("mask", "float", "y = Mul(x, data)", Kind.MASK),
    ("x_lengths", "int64", "y = Cast<to = 1>(x)", Kind.LENGTH),
    ("x", "int64", "e = Equal(x, k)\n y = Cast<to = 1>(e)", Kind.CHOICE),
    ("x", "int64", "y = Cast<to = 1>(x)", Kind.NUMBER),
    ("x", "float", "y = Sqrt(x)", Kind.POSITIVE),
    ("x", "float", "a = Mul(x, one)\n b = Add(a, two)\n y = Sqrt(b)", Kind.POSITIVE),
    ("x", "float", "a = Mul(x, x)\n y = Sqrt(a)", Kind.NUMBER),
    ("x", "float", "y = Relu(x)", Kind.NUMBER),
])
def test_roles_by_use_and_name(name: str, dtype: str, body: str, kind: Kind) -> None:
    renamed = body.replace("(x,", f"({name},").replace("(x)", f"({name})").replace(", x)", f", {name})")
    text = f"g ({dtype}[n, s] {name}, float[n, s] data) => (float[n, s] y) {{ {renamed} }}"
    weights = {"one": np.array(1, F), "two": np.array(2, F), "k": np.array(16000)}
    assert role(text, name, **weights).kind is kind


def test_masks_keep_a_key_in_every_row_and_drop_some() -> None:
    text = "g (int64[n, s] mask) => (float y) { y = Cast<to = 1>(mask) }"
    got = values(text, "mask", dims={"n": 64, "s": 12})
    assert set(np.unique(got)) == {0, 1}
    assert (got[:, 0] == 1).all()
    assert (np.diff(got, axis=1) <= 0).all()  # tails only
    assert got[0].all()
    assert got.mean() > 0.6
    four = values("g (float[b, 1, q, s] mask, float[b, 2, q, s] x) => (float y) { y = Add(x, mask) }", "mask")
    assert (four.max(axis=-1) == 0).all()
    assert (four == four[:, :, :1]).all()
    half = values("g (float16[b, 1, q, s] mask, float16[b, 2, q, s] x) => (float16 y) { y = Add(x, mask) }", "mask")
    assert np.isfinite(half).all()


def test_choices_follow_the_samples() -> None:
    text = "g (int64 sr) => (bool y) { a = Equal(sr, k)\n b = Equal(sr, l)\n y = Or(a, b) }"
    weights = {"k": np.array(16000), "l": np.array(8000)}
    assert [int(values(text, "sr", s, **weights)) for s in range(3)] == [16000, 8000, 16000]


@pytest.mark.parametrize(("body", "wanted"), [
    ("y = Reshape(data, x)", [-1, 1]), ("y = Expand(data, x)", [1, 1]), ("y = Unsqueeze(data, x)", [0, 0]),
])
def test_shape_operands_fit_any_data(body: str, wanted: list[int]) -> None:
    assert values(f"g (int64[2] x, float[n] data) => (float y) {{ {body} }}", "x").tolist() == wanted


def test_dtypes_and_image_range() -> None:
    image = values("g (float[n, 3, h, w] x) => (float y) { y = Conv(x, K) }", "x", K=np.zeros((2, 3, 3, 3), F))
    assert image.shape == (2, 3, 96, 96)
    assert 0 <= image.min() < 0.1 < 0.9 < image.max() <= 1
    for dtype, wanted in (("float16", "float16"), ("bfloat16", "bfloat16"), ("int8", "int8"), ("uint8", "uint8"),
                          ("bool", "bool"), ("string", "object"), ("double", "float64"), ("uint64", "uint64")):
        assert values(f"g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Identity(x) }}", "x").dtype.name == wanted
    assert values("g (int8[n] x) => (int8[n] y) { y = Identity(x) }", "x", dims={"n": 500}).min() < -100


@pytest.mark.parametrize(("declared", "told"), [
    ("seq(float[n]) x", "is a sequence, which cannot be invented: give its value with --inputs"),
    ("optional(float[n]) x", "is an optional"), ("complex64[n] x", "is complex64"), ("int4[n] x", "is int4"),
    ("float[] x", "has no shape"), ("float x", ""),
])
def test_inputs_that_cannot_be_invented(declared: str, told: str) -> None:
    text = f"g ({declared}) => (float y) {{ y = Identity(x) }}"
    if told:
        with pytest.raises(InputError, match="input 'x'") as caught:
            InputMaker(parse(text))
        assert told in str(caught.value)
    else:
        InputMaker(parse(text))


def test_determinism_and_variety() -> None:
    model = parse("g (float[n, s] a, float[n, s] b) => (float[n, s] y) { y = Add(a, b) }")
    maker = InputMaker(model)

    def made(seed: int, sample: int) -> dict[str, Any]:
        return maker.make(seed, sample, maker.bindings(seed, sample)[0])

    one, two = made(3, 0), made(3, 0)
    assert all(np.array_equal(one[k], two[k]) for k in one)
    assert not np.array_equal(one["a"], one["b"])
    assert not np.array_equal(one["a"], made(4, 0)["a"])
    assert [made(0, s)["a"].shape for s in range(3)] == [(1, 16), (2, 24), (3, 13)]
    assert made(0, 3)["a"].shape == made(0, 3)["b"].shape


def test_the_first_sizes_that_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(parse("g (float[n, s] x) => (float[n, s] y) { y = Relu(x) }"), path)

    def wants(length: int) -> Callable[[dict[str, Any]], None]:
        def run(feeds: dict[str, Any]) -> None:
            if feeds["x"].shape[1] != length:
                raise RuntimeError(f"not {length}\nmore")
        return run

    assert accepted_inputs(path, wants(512), sample=1)["x"].shape == (2, 512)
    with pytest.raises(InputError, match=r"runs on none of the sizes tried \(not 77\): fix them with --dim"):
        accepted_inputs(path, wants(77))
    assert accepted_inputs(path, wants(77), dims={"s": 77})["x"].shape == (1, 77)


def test_initializers_are_not_inputs() -> None:
    model = parse("g (float[n] x, float[4] w) => (float y) { y = Add(x, w) }", w=np.zeros(4, F))
    assert list(InputMaker(model).roles) == ["x"]


def test_unknown_dim_is_a_usage_error() -> None:
    model = parse("g (float[n, s] x) => (float[n, s] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match=r"--dim batch: no input has a symbolic dim of that name \(there are: n, s\)"):
        InputMaker(model, {"batch": 2})


CACHED = """g (float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, p, 16] pk, float[b, 2, p, 16] pv,
             int32[b] last, int32 total) => (float y) {
    minus = Sub(total, one)
    y, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, pk, pv, last, total) }"""


def test_lengths_of_a_key_cache_are_past_and_new_keys() -> None:
    """Others send every sample around the kernel that makes the cache."""
    weights = {"one": np.array(1, np.int32)}
    dims = {"b": 3, "s": 2, "p": 7}
    assert values(CACHED, "last", 0, dims, **weights).tolist() == [8, 8, 8]
    total = values(CACHED, "total", 0, dims, **weights)
    assert isinstance(total, np.ndarray)  # a numpy scalar is no input
    assert total.tolist() == 9
    ragged = values(CACHED, "last", 1, dims, **weights)
    assert set(ragged) <= {7, 8}
    assert values(CACHED, "total", 1, dims, **weights).tolist() == 9
    behind = CACHED.replace("last, total) }", "less, total) }").replace("minus = ", "less = Sub(last, one) minus = ")
    assert values(behind, "last", 0, dims, **weights).tolist() == [9, 9, 9]


def test_a_mask_of_one_row_hides_nothing_in_every_other_sample() -> None:
    text = "g (int64[1, s] attention_mask) => (float y) { y = Cast<to = 1>(attention_mask) }"
    assert values(text, "attention_mask", 1, {"s": 99}).all()
    assert not values(text, "attention_mask", 2, {"s": 99}).all()
