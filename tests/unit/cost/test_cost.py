"""The cost model: an order, not a measurement."""

from __future__ import annotations

from tests.unit.fusion.parse import lowered
from tilegraph.cost import CostModel, RegionCost, estimate
from tilegraph.ops.region import plan
from tilegraph.rewrites.fusion.legal import work
from tilegraph.spec.dims import Dim


def test_symbols_have_an_assumed_extent_and_nothing_is_negative() -> None:
    assert estimate(Dim.of(7)) == 7
    n = estimate(Dim.symbol("N"))
    assert n > 1
    assert estimate(Dim.symbol("N") * Dim.symbol("M") * 3) == 3 * n * n
    assert estimate(Dim.symbol("N") - 10 * n) == 0


def test_a_region_wins_by_a_ratio_and_by_an_amount() -> None:
    assert RegionCost(10.0, 5.0, 3).wins
    assert not RegionCost(100.0, 99.0, 3).wins  # better by enough, but not in ratio
    assert not RegionCost(0.5, 0.1, 3).wins  # five times better, by nothing
    assert "5.0 µs against 10.0 µs" in str(RegionCost(10.0, 5.0, 3))


def test_more_work_costs_more() -> None:
    model = CostModel()
    assert model.node_us("Erf", 10_000, 80_000) > model.node_us("Erf", 1_000, 8_000) > model.node_us("Erf", 0, 0)
    assert model.node_us("Erf", 10_000, 80_000) > model.node_us("Add", 10_000, 80_000)
    assert model.node_us("Reshape", 10_000, 80_000) == model.node_us("Reshape", 1, 8)
    assert model.kernel_us(vectors=1e6, bytes_moved=0, inputs=1) > model.kernel_us(vectors=1e3, bytes_moved=0, inputs=1)
    assert model.kernel_us(vectors=0, bytes_moved=10**8, inputs=1) > model.kernel_us(vectors=0, bytes_moved=1, inputs=1)
    assert model.kernel_us(vectors=0, bytes_moved=0, inputs=9) > model.kernel_us(vectors=0, bytes_moved=0, inputs=1)


def test_work_counts_values_of_a_row_once_a_row() -> None:
    """A square root per row costs less than one per element."""
    per_row = work(plan(lowered("(float[64,256] x, float[64,1] s) => (float[64,256] y) { r = Sqrt(s) y = Mul(x, r) }")))
    per_element = work(plan(lowered("(float[64,256] x, float[64,256] s) => (float[64,256] y) { r = Sqrt(s) "
                                    "y = Mul(x, r) }")))
    plain = work(plan(lowered("(float[64,256] x, float[64,1] s) => (float[64,256] y) { y = Mul(x, s) }")))
    assert plain < per_row < per_element
