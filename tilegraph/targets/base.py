"""What a target is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilegraph.codegen.isa import Isa
from tilegraph.passes import Pass


class Passes(Protocol):
    """The pipeline before partitioning, for an instruction set; None for the host's."""

    def __call__(self, offload: str, isa: Isa | None = None) -> Sequence[Pass]: ...


@dataclass(frozen=True)
class Target:
    """`passes(offload, isa)` is the pipeline before partitioning; `isa(mcpu)` the instruction set to compile for."""

    name: str
    description: str
    passes: Passes
    isa: Callable[[str | None], Isa]
