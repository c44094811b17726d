"""Greedy placement of buffers whose sizes are numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegraph.memory.buffers import Buffer


def place(order: Sequence[Buffer], sizes: Mapping[str, int]) -> dict[str, int]:
    """Offsets in bytes: each buffer of `order` goes into the tightest gap between the placed ones that it meets."""
    offsets: dict[str, int] = {}
    placed: list[Buffer] = []
    for buffer in order:
        size = sizes[buffer.name]
        if size == 0:
            offsets[buffer.name] = 0
            continue
        met = sorted((offsets[p.name], sizes[p.name]) for p in placed if p.meets(buffer))
        best: int | None = None
        tightest = 0
        free_from = 0
        for start, length in met:
            gap = start - free_from
            if gap >= size and (best is None or gap < tightest):
                best, tightest = free_from, gap
            free_from = max(free_from, start + length)
        offsets[buffer.name] = free_from if best is None else best
        placed.append(buffer)
    return offsets
