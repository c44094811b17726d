"""Estimates that guide decisions. A cost model is never a measurement."""

from tilegraph.cost.model import CostModel, Extents, RegionCost, estimate

__all__ = ["CostModel", "Extents", "RegionCost", "estimate"]
