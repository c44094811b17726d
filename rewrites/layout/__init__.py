"""The layout planner: which values are kept with their channels in blocks, chosen over the whole graph."""
