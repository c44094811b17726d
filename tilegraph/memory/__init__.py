"""Where the intermediate buffers of a partition lie in its arena."""

from tilegraph.memory.buffers import ArenaPlan, Buffer
from tilegraph.memory.planner import plan

__all__ = ["ArenaPlan", "Buffer", "plan"]
