"""Targets: hardware plus compiler options, one file each, in one table."""

from tilegraph.targets.table import describe, get, names

__all__ = ["describe", "get", "names"]
