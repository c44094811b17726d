"""Attention in the spellings of the attention tests, as whole models: served, and at other lengths."""

from __future__ import annotations

import numpy as np

from tests.fuzz.subject import Subject
from tests.fuzz.values import Array
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


def spelled(seed: int) -> Subject:
    rng = np.random.default_rng(seed)

    def one(choices: tuple[str, ...]) -> str:
        return str(rng.choice(choices))

    layout, mask = one(LAYOUTS), one(MASKS)
    queries, depth, width = (int(n) for n in rng.integers(1, (150, 70, 70)))
    free = layout != "packed" and mask in ("none", "bias", "softcap", "padding")
    keys = int(rng.integers(1, 150)) if free else queries
    softmax = one((*SOFTMAXES, AFTER) if mask in EXACT_MASKS else SOFTMAXES)
    fixed = softmax == AFTER or layout == "batched" or mask in SIZED_BY_CONSTANTS
    spelling = Spelling(
        int(rng.integers(1, 3)), int(rng.integers(1, 4)), queries, keys, depth,
        depth if layout == "packed" else width, layout=layout, scale=one(SCALES), mask=mask, softmax=softmax,
        window=int(rng.integers(1, 80)), repeat=one(REPEATS), right=bool(rng.random() < 0.5),
        symbolic=not fixed and bool(rng.random() < 0.7), opset=int(rng.choice([17, 18, 21, 23])))
    model = spelling.model()

    def other(draw: int) -> dict[str, Array]:
        if not spelling.symbolic:
            return {}
        lengths = np.random.default_rng((seed, draw))
        b, s, t = (int(lengths.choice(c)) for c in ((1, 3), (1, 2, 7, 64, 193), (1, 3, 16, 130)))
        return spelling.feeds(seed + draw, b=b, s=s, t=t)

    return Subject(model, spelling.feeds(seed), other)
