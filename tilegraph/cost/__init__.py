"""Estimates that guide decisions. A cost model is never a measurement."""

from tilegraph.cost.model import CostModel, RegionCost, estimate

__all__ = ["CostModel", "RegionCost", "estimate"]
