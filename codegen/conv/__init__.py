"""The kernel generators for convolutions and pooling in blocked layout."""

from tilegraph.codegen.conv.choose import generate

__all__ = ["generate"]
