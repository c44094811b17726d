"""Decisions, their reasons, and dumps."""

from tilegraph.diagnostics.decisions import Decision, Diagnostics

__all__ = ["Decision", "Diagnostics"]
