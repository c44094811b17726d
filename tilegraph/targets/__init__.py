"""Targets: hardware plus compiler options, one file each, in one table."""

from tilegraph.targets.base import CompilerOptions
from tilegraph.targets.table import describe, get, names

__all__ = ["CompilerOptions", "describe", "get", "names"]
