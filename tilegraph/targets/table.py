"""The table of targets."""

from __future__ import annotations

from tilegraph.errors import UsageError
from tilegraph.targets.base import Target
from tilegraph.targets.cpu import CPU

TARGETS: dict[str, Target] = {t.name: t for t in (CPU,)}


def names() -> list[str]:
    return list(TARGETS)


def describe(name: str) -> str:
    return get(name).description


def get(name: str) -> Target:
    """The target; `UsageError` that lists the known ones."""
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}; known: {', '.join(TARGETS)}")
    return TARGETS[name]
