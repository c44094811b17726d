"""The kernel generator for attention."""

from tilegraph.codegen.attention.kernel import generate

__all__ = ["generate"]
