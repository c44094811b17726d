"""What a target is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilegraph.codegen.isa import Isa
from tilegraph.passes import Pass

FLOAT32 = "float32"


@dataclass(frozen=True)
class CompilerOptions:
    """What a target's pipeline is built for: what to offload ("auto", "all" or "none"), the instruction set (None for
    the host's), the precision of products, how their matrices are stored, whether convolutions may err more, and
    whether keys that attention does not see are known to be finite."""

    offload: str = "auto"
    isa: Isa | None = None
    precision: str = FLOAT32
    weights: str = FLOAT32
    fast_winograd: bool = False
    trust_hidden: bool = False


@dataclass(frozen=True)
class Target:
    """`passes(options)` is the pipeline before partitioning, which raises `UsageError` where the instruction set lacks
    what the options need; `isa(mcpu)` the instruction set to compile for, with the features beside its base level that
    a kernel may use where it gains by them."""

    name: str
    description: str
    passes: Callable[[CompilerOptions], Sequence[Pass]]
    isa: Callable[[str | None], Isa]
