"""Extents that no input of a kernel has by itself, in terms of those that one has."""

from __future__ import annotations

from tilegraph.ops.lower.extents import Renames, divided
from tilegraph.spec.dims import Dim, parse

WIDE = parse("((w-16)//8)+1")


def test_what_is_made_of_a_renamed_extent_follows_it() -> None:
    renames = Renames([WIDE, Dim.symbol("n")], {"w"})
    name = renames[WIDE]
    assert name.bare_symbol == str(WIDE)
    assert renames.of(WIDE * 32) == name * 32  # channels of a group side by side
    assert renames.of((WIDE - 1) // 2 + 1) == (name - 1) // 2 + 1  # a stride behind it
    assert renames.of(Dim.symbol("n") * 2) == Dim.symbol("n") * 2


def test_products_of_two_renamed_extents() -> None:
    a, b = parse("(h//2)+1"), parse("(w//2)+1")
    renames = Renames([a, b], {"h", "w"})
    assert renames.of(a * b * 8) == renames[a] * renames[b] * 8


def test_multiples_of_a_product() -> None:
    """Tokens of all sequences, each sent to two experts."""
    renames = Renames([parse("b*s")], {"b", "s"})
    tokens = renames[parse("b*s")]
    assert tokens.bare_symbol == "b*s"
    assert renames.of(parse("2*b*s")) == tokens * 2
    assert renames.of(parse("b*b*s*s+3*b*k*s+1")) == tokens * tokens + tokens * 3 * Dim.symbol("k") + 1
    assert renames.of(parse("b*k")) == parse("b*k")  # no batch without the length
    assert renames.of(parse("b*s+s")).symbols == {"b*s", "s"}


def test_a_second_extent_of_the_same_symbols_needs_no_name() -> None:
    renames = Renames([WIDE * 4, WIDE], {"w"})
    assert renames[WIDE * 4] == renames[WIDE] * 4


def test_what_cannot_be_solved_is_a_name_of_its_own() -> None:
    both = parse("past+seq")
    renames = Renames([both, parse("2*(h//2)")], {"past", "seq", "h"})
    assert renames[both] == Dim.symbol(str(both))
    assert renames.of(both + 1).symbols == {"past", "seq"}  # unknown to the kernel, which is declined
    assert renames.of(parse("h//2")).symbols == {"h"}


def test_extents_that_an_input_has_are_not_solved() -> None:
    renames = Renames([parse("past+1"), Dim.symbol("past")], set())
    assert not renames
    assert renames.of(parse("past+1")) == parse("past+1")


def test_symbols_of_which_an_input_has_a_multiple() -> None:
    found = divided([parse("4*n+2"), parse("4*h*w"), parse("m+1")], {"n", "h", "w", "m"})
    assert set(found) == {"n"}
    dim, part = found["n"]
    assert dim == parse("4*n+2")
    assert part.evaluate({str(dim): 14}) == 3
    assert not divided([parse("4*n")], {"m"})
