"""Greedy placement of buffers whose sizes are expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegraph.memory.buffers import Buffer
from tilegraph.memory.compare import Comparer
from tilegraph.spec.dims import Dim


def place(order: Sequence[Buffer], sizes: Mapping[str, Dim], compare: Comparer,
          bindings: Sequence[Mapping[str, int]]) -> dict[str, Dim]:
    """Offsets in bytes, as expressions over the symbols of `sizes` (which are multiples of the alignment).

    Candidates for a buffer are 0 and the ends of the placed ones that it meets, lowest first (for `bindings`); the
    first is taken that provably overlaps none of them. Above them all there is always room.
    """
    offsets: dict[str, Dim] = {}
    placed: list[Buffer] = []
    weights: dict[Dim, int] = {}

    def weight(dim: Dim) -> int:
        if dim not in weights:
            weights[dim] = sum(dim.evaluate(b) for b in bindings)
        return weights[dim]

    for buffer in order:
        size = sizes[buffer.name]
        if size == 0:
            offsets[buffer.name] = Dim.of(0)
            continue
        # Distinct (start, end) pairs only: equal layers give equal expressions again and again.
        met = list(dict.fromkeys((offsets[p.name], offsets[p.name] + sizes[p.name])
                                 for p in placed if p.meets(buffer)))
        candidates = sorted({Dim.of(0), *(end for _, end in met)}, key=lambda d: (weight(d), str(d)))
        chosen = next((c for c in candidates if _fits(c, c + size, met, compare)), None)
        offsets[buffer.name] = compare.largest(end for _, end in met) if chosen is None else chosen
        placed.append(buffer)
    return offsets


def _fits(start: Dim, end: Dim, met: Sequence[tuple[Dim, Dim]], compare: Comparer) -> bool:
    return all(compare.at_most(other_end, start) or compare.at_most(end, other_start)
               for other_start, other_end in met)
