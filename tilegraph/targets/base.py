"""What a target is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilegraph.codegen.isa import Isa
from tilegraph.passes import Pass


@dataclass(frozen=True)
class Target:
    """`passes(offload)` is the pipeline before partitioning; `isa(mcpu)` the instruction set to compile for."""

    name: str
    description: str
    passes: Callable[[str], Sequence[Pass]]
    isa: Callable[[str | None], Isa]
