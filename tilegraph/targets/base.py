"""What a target is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilegraph.codegen.isa import Isa
from tilegraph.passes import Pass

FLOAT32 = "float32"


class Passes(Protocol):
    """The pipeline before partitioning, for an instruction set (None for the host's), a precision of products, how
    their matrices are stored, and whether convolutions may err more.

    Raises `UsageError` where the instruction set lacks what the precision needs.
    """

    def __call__(self, offload: str, isa: Isa | None = None, precision: str = FLOAT32,
                 weights: str = FLOAT32, fast_winograd: bool = False) -> Sequence[Pass]: ...


@dataclass(frozen=True)
class Target:
    """`passes(offload, isa, ...)` is the pipeline before partitioning; `isa(mcpu)` the instruction set to compile
    for, with the features beside its base level that a kernel may use where it gains by them."""

    name: str
    description: str
    passes: Passes
    isa: Callable[[str | None], Isa]
