"""Which spellings of an attention go together, for whoever draws them at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.unit.attention.spellings import (
    AFTER,
    EXACT_MASKS,
    LAYOUTS,
    MASKS,
    REPEATS,
    SCALES,
    SIZED_BY_CONSTANTS,
    SOFTMAXES,
    Spelling,
)


def composed(one: Callable[[Sequence[str]], str], number: Callable[[int, int], int], *, symbolic: bool,
             opset: int = 18) -> Spelling:
    """`one` draws from a sequence, `number` from low to high, both included. `symbolic`: with named dims, where the
    spelling has no constants of one size."""
    layout, mask = one(LAYOUTS), one(MASKS)
    queries, depth = number(1, 150), number(1, 70)
    free = layout != "packed" and mask in ("none", "bias", "softcap", "padding")
    softmax = one((*SOFTMAXES, AFTER) if mask in EXACT_MASKS else SOFTMAXES)
    fixed = softmax == AFTER or layout == "batched" or mask in SIZED_BY_CONSTANTS
    return Spelling(
        number(1, 2), number(1, 3), queries, number(1, 150) if free else queries, depth,
        depth if layout == "packed" else number(1, 70), layout=layout, scale=one(SCALES), mask=mask, softmax=softmax,
        window=number(1, 80), repeat=one(REPEATS), right=bool(number(0, 1)), symbolic=symbolic and not fixed,
        opset=opset)
