"""Planted faults: each must be caught, and each harmless difference accepted, for the right reason."""

from __future__ import annotations

import numpy as np
import pytest
from verify_pairs import Pairs

from tilegraph.testing import assert_same_outputs
from tilegraph.verify import OutputResult, VerifyResult, verify

F = np.float32
RNG = np.random.default_rng(7)
W = RNG.standard_normal((8, 8)).astype(F)
B = RNG.standard_normal(8).astype(F)
LINEAR = "g (float[batch, 8] x) => (float[batch, 8] y) { h = MatMul(x, W)\n y = Add(h, B) }"


def the(result: VerifyResult, name: str = "y") -> OutputResult:
    return next(o for o in result.outputs if o.name == name)


def notes(result: VerifyResult, name: str = "y") -> str:
    return "; ".join(the(result, name).notes)


def test_a_model_is_the_same_as_itself(make: Pairs) -> None:
    model = make(LINEAR, W=W, B=B)
    result = verify(model, model)
    assert result.same
    assert result.samples == 3
    assert the(result).reference == "ORT in float64"
    assert the(result).elements == (1 + 2 + 3) * 8


def test_other_rounding_is_accepted(make: Pairs) -> None:
    # The same function with another order of sums: errors of the same size as ORT's own.
    a = make(LINEAR, W=W, B=B)
    b = make("g (float[batch, 8] x) => (float[batch, 8] y) { wt = Transpose<perm = [1, 0]>(W)\n"
             "y = Gemm<transB = 1>(x, wt, B) }", W=W, B=B)
    assert verify(a, b).same


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1.0])
def test_a_wrong_bias_is_caught(make: Pairs, size: float) -> None:
    wrong = B.copy()
    wrong[3] += F(size)
    result = verify(make(LINEAR, W=W, B=B), make(LINEAR, W=W, B=wrong))
    assert not result.same
    assert not result.inconclusive
    assert the(result).max_abs == pytest.approx(size, rel=0.1)
    assert "out of bounds, first at [0, 3]" in notes(result)


def test_lost_nan_is_caught(make: Pairs) -> None:
    a = make("g (float[n, 4] x) => (float[n, 4] y) { z = Sub(x, x)\n d = Div(z, z)\n e = Relu(x)\n y = Add(d, e) }")
    b = make("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    result = verify(a, b)
    assert not result.same
    assert "NaN or infinity differs" in notes(result)


def test_partly_nan_that_stays_is_accepted(make: Pairs) -> None:
    text = "g (float[n, 4] xs) => (float[n, 4] y) { y = {OP}(xs) }"
    model = make(text.replace("{OP}", "Sqrt"))
    x = np.array([[-1, 4, 9, -4]], F)
    assert verify(model, model, inputs={"xs": x}).same


def test_infinity_against_a_big_number_is_caught(make: Pairs) -> None:
    big = np.array(3e38, F)
    a = make("g (float[n, 4] x) => (float[n, 4] y) { y = Mul(x, big) }", big=big)
    limit = np.array(3.4e38, F)
    b = make("g (float[n, 4] x) => (float[n, 4] y) { z = Mul(x, big)\n y = Clip(z, low, high) }", big=big, low=-limit,
             high=limit)
    x = np.array([[0.5, -0.25, 4.0, -8.0]], F)
    result = verify(a, b, inputs={"x": x})
    assert not result.same
    assert "NaN or infinity differs at 2 places, first at [0, 2]" in notes(result)
    assert verify(a, a, inputs={"x": x}).same


def test_off_by_one_index_is_caught(make: Pairs) -> None:
    text = "g (float[n, 9] x) => (int64[n] i) { j = ArgMax<axis = 1, keepdims = 0>(x)\n i = Add(j, c) }"
    result = verify(make(text, c=np.array(0, np.int64)), make(text, c=np.array(1, np.int64)))
    assert not result.same
    assert the(result, "i").max_abs == 1


def test_transposed_output_is_caught(make: Pairs) -> None:
    a = make("g (float[4, 4] x) => (float[4, 4] y) { y = Relu(x) }")
    b = make("g (float[4, 4] x) => (float[4, 4] y) { z = Relu(x)\n y = Transpose(z) }")
    result = verify(a, b)
    assert not result.same
    assert "out of bounds" in notes(result)


@pytest.mark.parametrize(("body", "told"), [
    ("(double[n, 4] y) { z = Relu(x)\n y = Cast<to = 11>(z) }", "its dtype is float64, not float32"),
    ("(float[n, 4, 1] y) { z = Relu(x)\n y = Unsqueeze(z, two) }", "its rank is 3, not 2"),
    ("(float[n, 2] y) { z = Relu(x)\n y = Slice(z, zero, two, one) }", "its shape is [1, 2], not [1, 4]"),
])
def test_wrong_type_or_shape_is_caught(make: Pairs, body: str, told: str) -> None:
    a = make("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    b = make("g (float[n, 4] x) => " + body, zero=np.array([0]), one=np.array([1]), two=np.array([2]))
    result = verify(a, b)
    assert not result.same
    assert told in notes(result)


@pytest.mark.parametrize(("signature", "told"), [
    ("(float[n] x) => (float[n] y, float[n] z) { y = Relu(x)\n z = Neg(x) }",
     "has output 'z', which the original lacks"),
    ("(float[n] x) => (float[n] z) { z = Relu(x) }", "lacks output 'y'"),
    ("(float[n] x, float[n] w) => (float[n] y) { y = Relu(x) }", "has input 'w', which the original lacks"),
    ("(double[n] x) => (float[n] y) { z = Cast<to = 1>(x)\n y = Relu(z) }", "wants input 'x' as tensor(double)"),
])
def test_another_interface_is_caught(make: Pairs, signature: str, told: str) -> None:
    result = verify(make("g (float[n] x) => (float[n] y) { y = Relu(x) }"), make("g " + signature))
    assert not result.same
    assert told in "; ".join(result.problems)


def test_outputs_in_another_order_are_caught(make: Pairs) -> None:
    body = "{ y = Relu(x)\n z = Neg(x) }"
    a = make("g (float[n] x) => (float[n] y, float[n] z) " + body)
    b = make("g (float[n] x) => (float[n] z, float[n] y) " + body)
    result = verify(a, b)
    assert not result.same
    assert "in another order" in result.problems[0]


@pytest.mark.parametrize("fault", ["", "wrong"])
def test_constant_outputs_prove_nothing(make: Pairs, fault: str) -> None:
    text = "g (float[n, 4] x) => (float[n, 4] y) { z = Sub(x, x)\n y = Add(z, c) }"
    a = make(text, c=np.array(2, F))
    result = verify(a, make(text, c=np.array(3, F)) if fault else a)
    assert not result.same
    assert not the(result).proves
    # A constant that changed is different, not unproved.
    assert bool(result.inconclusive) == (not fault)
    if not fault:
        assert "constant (2.0 everywhere)" in result.inconclusive


def test_one_proving_output_is_enough_and_the_other_is_named(make: Pairs) -> None:
    model = make("g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { y = Relu(x)\n z = Sub(x, x) }")
    result = verify(model, model)
    assert result.same
    assert not the(result, "z").proves


def test_empty_outputs_prove_nothing(make: Pairs) -> None:
    model = make("g (float[n, 4] x) => (float[m, 4] y) { r = Relu(x)\n y = Slice(r, zero, zero) }",
                 zero=np.array([0]))
    result = verify(model, model)
    assert not result.same
    assert "empty" in result.inconclusive


def test_a_single_number_proves_something_unless_it_is_zero(make: Pairs) -> None:
    text = "g (float[4] x) => (float y) { r = {OP}(x, x)\n y = ReduceSum<keepdims = 0>(r) }"
    assert verify(m := make(text.replace("{OP}", "Mul")), m, samples=1).same
    assert verify(m := make(text.replace("{OP}", "Sub")), m, samples=1).inconclusive


def test_errors_of_both_prove_nothing_and_of_one_is_different(make: Pairs) -> None:
    # Indices of the range [0, 3) fail in a table of two rows.
    text = "g (int64[n] i) => (float[n, 2] y) { y = Gather(T, i) }"
    table = RNG.standard_normal((3, 2)).astype(F)
    good, bad = make(text, T=table), make(text, T=table[:2])
    feeds = {"i": np.array([0, 2, 1])}
    result = verify(good, bad, inputs=feeds)
    assert not result.same
    assert "the optimized model fails on sample 0" in result.problems[0]
    assert "out of data bounds" in result.problems[0]
    both = verify(bad, bad, inputs=feeds)
    assert not both.same
    assert "runs on none of the samples" in both.inconclusive
    assert not both.problems


def test_sizes_that_the_original_refuses_are_noted(make: Pairs) -> None:
    # Only multiples of 8 can be reshaped.
    model = make("g (float[n, seq] x) => (float[n, m, 8] y) { y = Reshape(x, s) }", s=np.array([0, -1, 8]))
    result = verify(model, model)
    assert result.same
    assert any("the original refuses n=3, seq=13" in n for n in result.notes)


def test_strings_and_bools_are_exact(make: Pairs) -> None:
    a = make("g (string[n] x, float[n] v) => (string[n] y, bool[n] b) { y = Identity(x)\n b = Greater(v, c) }",
             c=np.array(0, F))
    assert verify(a, a).same
    b = make("g (string[n] x, float[n] v) => (string[n] y, bool[n] b) { y = Identity(x)\n b = Less(v, c) }",
             c=np.array(0, F))
    result = verify(a, b)
    assert the(result, "y").same
    assert not the(result, "b").same
    c = make("g (string[n] x, float[n] v) => (string[n] y, bool[n] b) {"
             "b = Greater(v, c)\n y = Where(b, x, s) }", c=np.array(0, F), s=np.array("other", dtype=object))
    assert not the(verify(a, c), "y").same


def test_random_outputs_are_not_compared(make: Pairs) -> None:
    model = make("g (float[n] x) => (float[n] y, float[n] z) { r = RandomNormalLike(x)\n y = Add(r, x)\n z = Relu(x) }")
    result = verify(model, model)
    assert result.same
    assert "only its shape was compared" in notes(result)
    assert not the(result, "y").proves
    wrong = make("g (float[n] x) => (float[n] y, float[n] z) { y = RandomNormalLike(x)\n z = Neg(x) }")
    assert not verify(model, wrong).same


def test_given_tolerances_replace_the_bound(make: Pairs) -> None:
    a, b = make(LINEAR, W=W, B=B), make(LINEAR, W=W, B=B + F(1e-3))
    assert not verify(a, b).same
    result = verify(a, b, atol=2e-3)
    assert result.same
    assert (the(result).rtol, the(result).atol) == (0.0, 2e-3)
    assert not verify(a, b, rtol=1e-6).same


def test_the_helper_for_tests(make: Pairs) -> None:
    a, b = make(LINEAR, W=W, B=B), make(LINEAR, W=W, B=B + F(1))
    assert assert_same_outputs(a, a).same
    with pytest.raises(AssertionError, match=r"output 'y'.*out of bounds"):
        assert_same_outputs(a, b)
