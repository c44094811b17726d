"""What random graphs are made of, a family of operators each; a step adds some nodes to a graph, or none.

A profile says which families a graph draws from, how often: networks have blocks that no drawing from everything puts
behind each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.fuzz.families import (
    attention,
    beside,
    blocks,
    calls,
    computed,
    constants,
    control,
    images,
    masks,
    microsoft,
    places,
    pointwise,
    products,
    quantized,
    recurrent,
    reductions,
    twins,
    views,
)

if TYPE_CHECKING:
    from tests.fuzz.graphs import Graph

Step = Callable[["Graph"], None]


def _mixed(*parts: tuple[float, Sequence[Any]]) -> tuple[tuple[Step, ...], tuple[float, ...]]:
    """Steps and how likely each is, where families have the given weights."""
    whole = sum(weight for weight, _ in parts)
    steps = tuple(step for _, family in parts for step in family)
    return steps, tuple(weight / whole / len(family) for weight, family in parts for _ in family)


PROFILES = {
    "any": _mixed((6, pointwise.STEPS), (3, reductions.STEPS), (5, views.STEPS), (2, products.STEPS),
                  (1.5, images.STEPS), (1.5, attention.STEPS), (1, control.STEPS), (1, computed.STEPS),
                  (2.5, places.STEPS), (1, quantized.STEPS), (0.3, recurrent.STEPS), (0.4, beside.STEPS),
                  (0.4, calls.STEPS), (0.4, microsoft.STEPS), (0.6, blocks.STEPS), (1.5, masks.STEPS),
                  (1, constants.STEPS), (0.7, twins.STEPS)),
    "elements": _mixed((6, pointwise.STEPS), (3, reductions.STEPS), (4, views.STEPS), (1, computed.STEPS),
                       (2, places.STEPS), (1.5, masks.STEPS), (1.5, constants.STEPS), (0.7, twins.STEPS)),
    "images": _mixed((7, images.STEPS), (2, pointwise.STEPS), (1, views.STEPS), (0.5, quantized.STEPS),
                     (0.7, (blocks.last_channels, blocks.pooled)), (0.5, twins.STEPS)),
    "tokens": _mixed((3, products.STEPS), (3, attention.STEPS), (2, (reductions.normalised, pointwise.squashed)),
                     (2, pointwise.STEPS), (1, views.STEPS), (1, computed.STEPS), (0.6, microsoft.STEPS),
                     (2.5, blocks.STEPS), (1.5, masks.STEPS), (0.5, constants.STEPS)),
    "integers": _mixed((6, quantized.STEPS), (2, pointwise.STEPS), (2, views.STEPS), (1, products.STEPS),
                       (1, images.STEPS)),
    "state": _mixed((3, control.STEPS), (2, recurrent.STEPS), (1, calls.STEPS), (1, beside.STEPS),
                    (3, pointwise.STEPS), (1, computed.STEPS), (1, views.STEPS)),
}
