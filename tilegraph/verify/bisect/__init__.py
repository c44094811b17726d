"""Finds what is at fault when an optimized model answers otherwise: which pass or kernel, and the smallest subgraph."""

from tilegraph.verify.bisect.finding import Finding
from tilegraph.verify.bisect.search import bisect

__all__ = ["Finding", "bisect"]
