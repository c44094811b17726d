"""Control flow: graphs whose ranks or paths depend on a condition become straight lines, each under its condition;
loops compute what needs no state before they start, and those of a few steps, as many on every run, are written out."""

from tilegraph.rewrites.control.equal import EqualExtents
from tilegraph.rewrites.control.hoist import HoistFromLoops
from tilegraph.rewrites.control.unroll import UnrollLoops
from tilegraph.rewrites.control.versions import VersionBranches

__all__ = ["EqualExtents", "HoistFromLoops", "UnrollLoops", "VersionBranches"]
