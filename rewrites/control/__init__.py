"""Control flow: graphs whose ranks or paths depend on a condition become straight lines, each under its condition."""

from tilegraph.rewrites.control.equal import EqualExtents
from tilegraph.rewrites.control.versions import VersionBranches

__all__ = ["EqualExtents", "VersionBranches"]
