"""Nodes of convolution networks on values whose channels are in blocks: what can be written so, and how."""

from tilegraph.rewrites.conv.units import Unit, find_units, write_unit
from tilegraph.rewrites.conv.write import BlockedWriter, Source

__all__ = ["BlockedWriter", "Source", "Unit", "find_units", "write_unit"]
