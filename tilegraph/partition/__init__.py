"""Partitions: convex sets of composites that become one EPContext node each."""

from tilegraph.partition.group import group

__all__ = ["group"]
