"""Control flow: graphs whose ranks or paths depend on a condition become straight lines, each under its condition, and
loops compute what needs no state before they start."""

from tilegraph.rewrites.control.equal import EqualExtents
from tilegraph.rewrites.control.hoist import HoistFromLoops
from tilegraph.rewrites.control.versions import VersionBranches

__all__ = ["EqualExtents", "HoistFromLoops", "VersionBranches"]
