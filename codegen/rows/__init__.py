"""Kernels of regions: rows, and vectors along the columns."""

from tilegraph.codegen.rows.kernel import generate

__all__ = ["generate"]
