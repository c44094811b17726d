"""The stage driver and its result."""

from tilegraph.compiler.driver import list_passes, optimize
from tilegraph.compiler.result import OptimizedModel, Summary

__all__ = ["OptimizedModel", "Summary", "list_passes", "optimize"]
