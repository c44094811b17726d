"""The layout planner: which values are kept with their channels in blocks, chosen over the whole graph."""

from collections.abc import Sequence

from tilegraph.passes import Pass
from tilegraph.rewrites.layout.extents import NameExtents
from tilegraph.rewrites.layout.groups import WholeGroups
from tilegraph.rewrites.layout.plan import LayoutPlanning


def layout_passes(offload: str, lanes: int, fast: bool = False) -> Sequence[Pass]:
    """For blocks of `lanes` channels, 8 or 16, and convolutions with larger errors if `fast`; for a model that is
    normalised, and before regions are fused."""
    return NameExtents(offload), WholeGroups(offload, lanes), LayoutPlanning(offload, lanes, fast)


__all__ = ["LayoutPlanning", "NameExtents", "WholeGroups", "layout_passes"]
