"""The CPU target: x86-64-v3 and v4 (AArch64 is compiled, not tuned)."""

from __future__ import annotations

from collections.abc import Sequence

from tilegraph.codegen.isa import Isa, from_mcpu, host
from tilegraph.errors import UsageError
from tilegraph.passes import Pass
from tilegraph.rewrites.algebra import ALGEBRA
from tilegraph.rewrites.attention import AttentionFusion, ListFolded, NoteAttentions
from tilegraph.rewrites.attention.operators import FlexBodies
from tilegraph.rewrites.control import EqualExtents, HoistFromLoops, UnrollLoops, VersionBranches
from tilegraph.rewrites.fusion import AbsorbLeftovers, QuantizeBarrier, RegionFusion
from tilegraph.rewrites.gemm import PRECISIONS, WEIGHTS, GemmFusion, QuantizeWeights
from tilegraph.rewrites.layout import layout_passes
from tilegraph.rewrites.normalise import NORMALISE
from tilegraph.targets.base import FLOAT32, CompilerOptions, Target

_BFLOAT16 = "avx512bf16"
_FEATURES = (_BFLOAT16, "avx512vnni", "avxvnni")


def _passes(options: CompilerOptions) -> Sequence[Pass]:
    offload, isa = options.offload, options.isa or _isa(None)
    _check(options.precision, isa)
    noted = NoteAttentions()
    return (*_rounded(options.weights), FlexBodies(), noted, *NORMALISE, ListFolded(noted), HoistFromLoops(),
            UnrollLoops(), VersionBranches(), EqualExtents(), *ALGEBRA,
            AttentionFusion(offload, trust_hidden=options.trust_hidden),
            GemmFusion(offload, options.precision, isa.vector_bits),
            *_layout(offload, isa, options.fast_winograd), RegionFusion(offload), AbsorbLeftovers(offload),
            QuantizeBarrier())


def _rounded(weights: str) -> Sequence[Pass]:
    if weights not in WEIGHTS:
        raise UsageError(f"--weights {weights}: choose one of {', '.join(WEIGHTS)}")
    return () if weights == FLOAT32 else (QuantizeWeights(weights),)


def _check(precision: str, isa: Isa) -> None:
    """A slower kernel that rounds its operands would lose the precision for nothing, so there is none."""
    if precision not in PRECISIONS:
        raise UsageError(f"--precision {precision}: choose one of {', '.join(PRECISIONS)}")
    if precision == "bf16" and _BFLOAT16 not in isa.features:
        raise UsageError(f"--precision bf16: {isa} has no products of bfloat16 ({_BFLOAT16}); leave it out, or "
                         "compile for a CPU that has them, such as --mcpu znver4, cooperlake or sapphirerapids")


def _layout(offload: str, isa: Isa, fast: bool) -> Sequence[Pass]:
    """Blocks of as many channels as a register holds floats; kernels of convolutions need 8 or 16."""
    return layout_passes(offload, isa.vector_bits // 32, fast) if isa.vector_bits >= 256 else ()


def _isa(mcpu: str | None) -> Isa:
    """Most kernels use the base level only, so that a library runs on every CPU of that level; products of integers,
    which are exact with and without, use what the CPU has for them."""
    found = host() if mcpu is None else from_mcpu(mcpu)
    return Isa(found.base, tuple(f for f in found.features if f in _FEATURES))


CPU = Target("cpu", "x86-64 CPUs with AVX2 or AVX-512, compiled for this machine or for --mcpu NAME", _passes, _isa)
