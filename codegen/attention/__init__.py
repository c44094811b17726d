"""The kernel generator for attention."""

from tilegraph.codegen.attention.kernel import GENERATOR, generate

__all__ = ["GENERATOR", "generate"]
