"""Fusion by region: connected, convex sets of pointwise, view-like and reduction nodes become composites."""

from tilegraph.rewrites.fusion.absorb import AbsorbLeftovers
from tilegraph.rewrites.fusion.barrier import QuantizeBarrier
from tilegraph.rewrites.fusion.regions import RegionFusion

__all__ = ["AbsorbLeftovers", "QuantizeBarrier", "RegionFusion"]
