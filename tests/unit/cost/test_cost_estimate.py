"""Numbers for symbolic extents."""

from __future__ import annotations

from tilegraph.cost import estimate
from tilegraph.spec.dims import Dim


def test_symbols_count_the_assumed_extent() -> None:
    assert estimate(Dim.of("n") * 3) == 192


def test_a_symbol_that_names_an_expression_counts_its_value() -> None:
    # What the extents of kernels look like: the text of the model's dim is the symbol.
    half = Dim.symbol("((h-1)//2)+1")
    assert half.bare_symbol is not None
    assert estimate(half * half) == 32 * 32
    assert estimate(Dim.symbol("p2o.DynamicDimension.0")) == 64


def test_what_symbols_are_taken_to_be() -> None:
    half = Dim.symbol("((h-1)//2)+1")
    assert estimate(half * Dim.of("n"), (("h", 9), ("n", 3))) == 15
    assert estimate(half * Dim.of("n"), (("n", 3),)) == 32 * 3
