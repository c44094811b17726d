"""Properties of extents: the canonical form, arithmetic against evaluation, text and JSON round trips."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilegraph.spec.dims import Dim, parse

SYMBOLS = ("batch", "seq", "past_0")
bindings = st.fixed_dictionaries({s: st.integers(0, 50) for s in SYMBOLS})
ints = st.integers(-9, 9)


def _combine(children: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        pairs.map(lambda p: Dim.min(*p)),
        pairs.map(lambda p: Dim.max(*p)),
        st.tuples(children, st.integers(1, 9)).map(lambda p: p[0] // p[1]),
        st.tuples(children, st.integers(1, 9)).map(lambda p: p[0] % p[1]),
    )


leaves = st.one_of(ints.map(Dim.of), st.sampled_from(SYMBOLS).map(Dim.symbol))
dims = st.recursive(leaves, _combine, max_leaves=6)


@given(dims, dims, bindings)
def test_arithmetic_agrees_with_evaluation(a: Dim, b: Dim, binding: dict[str, int]) -> None:
    x, y = a.evaluate(binding), b.evaluate(binding)
    assert (a + b).evaluate(binding) == x + y
    assert (a - b).evaluate(binding) == x - y
    assert (a * b).evaluate(binding) == x * y
    assert (-a).evaluate(binding) == -x
    assert Dim.min(a, b).evaluate(binding) == min(x, y)
    assert Dim.max(a, b).evaluate(binding) == max(x, y)


@given(dims, st.integers(1, 12), bindings)
def test_division_agrees_with_evaluation(a: Dim, n: int, binding: dict[str, int]) -> None:
    x = a.evaluate(binding)
    assert (a // n).evaluate(binding) == x // n
    assert (a % n).evaluate(binding) == x % n
    assert a.ceildiv(n).evaluate(binding) == -(-x // n)


@pytest.mark.parametrize(("text", "same"), [
    ("(((h-1)//2)//2)+1", "((h-1)//4)+1"),  # what two strides of 2 leave, and one of 4
    ("((2*h-1)//2)+1", "h"),  # a stride of 2 behind upsampling
    ("(6*h+5*w+7)//3", "2*h+2+((5*w+1)//3)"),
])
def test_floor_divisions_are_simplified(text: str, same: str) -> None:
    assert parse(text) == parse(same)


def test_divisions_of_other_divisors_stay() -> None:
    assert parse("((h+1)//2)//2") != parse("(h+1)//2")
    assert str(parse("((h-1)//2)+1")) == "((h-1)//2)+1"
    assert str(parse("((h//w)//2)")) == "((h//w)//2)"


@given(dims, dims, bindings)
def test_symbolic_division_agrees_where_it_is_defined(a: Dim, b: Dim, binding: dict[str, int]) -> None:
    y = b.evaluate(binding)
    assume(y > 0)
    try:
        quotient, rest = (a // b).evaluate(binding), (a % b).evaluate(binding)
    except ZeroDivisionError:
        # A nested division of the operands, not ours.
        assume(False)
    assert quotient == a.evaluate(binding) // y
    assert rest == a.evaluate(binding) % y


@given(dims, dims, dims)
def test_canonical_form_is_independent_of_the_order(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert hash(a + b) == hash(b + a)


@given(dims, dims)
def test_exact_division_inverts_multiplication(a: Dim, b: Dim) -> None:
    assume(b.terms)
    assert (a * b).exact_div(b) == a


@given(dims, dims)
def test_exact_division_has_no_rest(a: Dim, b: Dim) -> None:
    quotient = a.exact_div(b)
    assert quotient is None or quotient * b == a


def test_division_by_the_places_of_an_image() -> None:
    height, width = parse("((h-1)//4)+1"), parse("((w-1)//4)+1")
    assert (height * width * 32).exact_div(height * width) == 32
    assert (height * width * 32 + 1).exact_div(height * width) is None
    assert (height * width).exact_div(height * 2 * width) is None


def test_exact_division_refuses_what_it_cannot_prove() -> None:
    n = Dim.symbol("n")
    assert n.exact_div(2) is None
    assert (n + 1).exact_div(n) is None
    assert (n * 6).exact_div(4) is None
    assert (n * 6 + 2).exact_div(2) == n * 3 + 1
    assert (n + 1).exact_div(n + 1) == 1


@given(dims, dims, st.sampled_from(["//", "%"]))
def test_text_round_trip(a: Dim, b: Dim, op: str) -> None:
    quotient = a // b if op == "//" else a % b
    for dim in (a, quotient, quotient * a - b):
        assert parse(str(dim)) == dim


@given(dims)
def test_json_round_trip(a: Dim) -> None:
    assert Dim.from_json(a.to_json()) == a


@given(dims, bindings)
def test_full_substitution_is_evaluation(a: Dim, binding: dict[str, int]) -> None:
    assert a.substitute(dict(binding)) == a.evaluate(binding)


@given(dims, dims, bindings)
def test_substitution_commutes_with_evaluation(a: Dim, b: Dim, binding: dict[str, int]) -> None:
    value = b.evaluate(binding)
    assert a.substitute({"seq": b}).evaluate(binding) == a.evaluate({**binding, "seq": value})


@given(dims, bindings)
def test_symbols_are_all_that_evaluation_needs(a: Dim, binding: dict[str, int]) -> None:
    assert a.evaluate({s: binding[s] for s in a.symbols}) == a.evaluate(binding)


def test_a_missing_symbol_is_named() -> None:
    with pytest.raises(KeyError, match="seq"):
        (Dim.symbol("seq") + 1).evaluate({"batch": 1})


@pytest.mark.parametrize(("text", "expected"), [
    ("batch", Dim.symbol("batch")),
    ("2*seq + 1", Dim.symbol("seq") * 2 + 1),
    ("past_sequence_length + sequence_length", Dim.symbol("past_sequence_length") + Dim.symbol("sequence_length")),
    ("Max(1, seq)", Dim.max(1, "seq")),
    ("floor(seq/2)", Dim.symbol("seq") // 2),
    ("floor((seq + 1)/2) - 3", (Dim.symbol("seq") + 1) // 2 - 3),
    ("-(seq - 4)", Dim.of(4) - Dim.symbol("seq")),
    ("seq**2", Dim.symbol("seq") * Dim.symbol("seq")),
    ("2*seq**2", Dim.symbol("seq") * Dim.symbol("seq") * 2),
    ("-seq**2", -Dim.symbol("seq") * Dim.symbol("seq")),
    ("floor(seq/2 + 1/2)", (Dim.symbol("seq") + 1) // 2),
    ("floor(seq**2/3 - past/2)", (Dim.symbol("seq") * Dim.symbol("seq") * 2 - Dim.symbol("past") * 3) // 6),
    ("floor(seq/past)", Dim.symbol("seq") // Dim.symbol("past")),
    ("ceiling(seq/4)", Dim.symbol("seq").ceildiv(4)),
    ("Mod(seq, 2)", Dim.symbol("seq") % 2),
    ("seq/2 + seq/2", Dim.symbol("seq")),
    ("seq//past//2", (Dim.symbol("seq") // Dim.symbol("past")) // 2),
    ("7", Dim.of(7)),
])
def test_expressions_of_exporters(text: str, expected: Dim) -> None:
    assert Dim.of(text) == expected


@pytest.mark.parametrize("text", ["a b", "?", "seq/2", "Max(1", "f(x)", "1 +", "(", "a.b_dim_1", "unk__12", "seq/0",
                                  "seq**-1", "2**seq", "seq**999", "2seq", "min()", "floor(a, b)", "(" * 5000 + "a"])
def test_what_is_no_expression_is_one_symbol(text: str) -> None:
    assert Dim.of(text).symbols == {text}


@pytest.mark.parametrize(("text", "least"), [
    ("n", 0), ("n+3", 3), ("2*n-1", -1), ("(n-1)//2", -1), ("(n-3)//2+1", -1), ("(n-1)//2*(m-1)", None), ("5-n", None),
    ("(n-3)%4", 0), ("min(n-2, 7)", -2), ("max(n-2, 1)", 1), ("min(4-n, 2)", None), ("max(4-n, n)", 0), ("n//m", 0),
    ("n*m+4", 4)])
def test_the_least_that_a_dim_can_be(text: str, least: int | None) -> None:
    assert Dim.of(text).least == least
    if least is not None:
        assert least <= min(Dim.of(text).evaluate({"n": n, "m": m}) for n in range(9) for m in range(1, 4))
