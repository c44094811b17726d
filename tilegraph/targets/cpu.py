"""The CPU target: x86-64-v3 and v4 (AArch64 is compiled, not tuned)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.codegen.isa import Isa, from_mcpu, host
from tilegraph.passes import Pass
from tilegraph.rewrites.algebra import ALGEBRA
from tilegraph.rewrites.attention import AttentionFusion
from tilegraph.rewrites.attention.operators import FlexBodies
from tilegraph.rewrites.fusion import AbsorbLeftovers, RegionFusion
from tilegraph.rewrites.gemm import GemmFusion
from tilegraph.rewrites.layout import layout_passes
from tilegraph.rewrites.normalise import NORMALISE
from tilegraph.targets.base import Target


def _passes(offload: str, isa: Isa | None = None) -> Sequence[Pass]:
    return (FlexBodies(), *NORMALISE, *ALGEBRA, AttentionFusion(offload), GemmFusion(offload),
            *_layout(offload, isa or _isa(None)), RegionFusion(offload), AbsorbLeftovers(offload))


def _layout(offload: str, isa: Isa) -> Sequence[Pass]:
    """Blocks of as many channels as a register holds floats; kernels of convolutions need 8 or 16."""
    return layout_passes(offload, isa.vector_bits // 32) if isa.vector_bits >= 256 else ()


def _isa(mcpu: str | None) -> Isa:
    """Row kernels use the base level only, so that a library runs on every CPU of that level."""
    found = host() if mcpu is None else from_mcpu(mcpu)
    return Isa(found.base)


CPU = Target("cpu", "x86-64 CPUs with AVX2 or AVX-512, compiled for this machine or for --mcpu NAME", _passes, _isa)
