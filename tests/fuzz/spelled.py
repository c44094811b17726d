"""Attention in the spellings of the attention tests, as whole models: served, and at other lengths."""

from __future__ import annotations

import numpy as np

from tests.fuzz.subject import Subject
from tests.fuzz.values import Array
from tests.unit.attention.composed import composed


def spelled(seed: int) -> Subject:
    rng = np.random.default_rng(seed)
    spelling = composed(lambda choices: str(rng.choice(choices)), lambda low, high: int(rng.integers(low, high + 1)),
                        symbolic=bool(rng.random() < 0.7), opset=int(rng.choice([17, 18, 21, 23])))
    model = spelling.model()

    def other(draw: int) -> dict[str, Array]:
        if not spelling.symbolic:
            return {}
        lengths = np.random.default_rng((seed, draw))
        b, s, t = (int(lengths.choice(c)) for c in ((1, 3), (1, 2, 7, 64, 193), (1, 3, 16, 130)))
        return spelling.feeds(seed + draw, b=b, s=s, t=t)

    return Subject(model, spelling.feeds(seed), other)
