"""The table of targets."""

from __future__ import annotations

import pytest

from tilegraph import targets
from tilegraph.codegen.isa import BASES
from tilegraph.errors import UsageError
from tilegraph.passes import Pipeline
from tilegraph.rewrites.fusion import QuantizeBarrier, RegionFusion
from tilegraph.targets import CompilerOptions


def test_every_target_is_described_and_has_a_pipeline() -> None:
    assert "cpu" in targets.names()
    for name in targets.names():
        assert targets.describe(name)
        passes = list(targets.get(name).passes(CompilerOptions()))
        Pipeline(passes)
        names = [p.name for p in passes]
        assert len(set(names)) == len(names)


def test_regions_come_last_and_know_what_to_offload() -> None:
    for offload in ("all", "auto", "none"):
        *_, last, barrier = targets.get("cpu").passes(CompilerOptions(offload))
        assert isinstance(last, RegionFusion)
        assert last.offload == offload
        assert isinstance(barrier, QuantizeBarrier)  # looks at all that became kernels


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown target 'tpu'; known: cpu"):
        targets.get("tpu")


def test_kernels_are_compiled_for_a_level_and_not_for_one_cpu() -> None:
    isa = targets.get("cpu").isa("znver4")
    assert isa.base == "x86-64-v4"
    assert targets.get("cpu").isa(None).base in BASES
    assert set(isa.features) <= {"avx512bf16", "avx512vnni"}
    with pytest.raises(UsageError, match="unknown CPU"):
        targets.get("cpu").isa("pentium")


def test_a_precision_needs_its_instructions() -> None:
    cpu = targets.get("cpu")
    assert list(cpu.passes(CompilerOptions("auto", cpu.isa("znver4"), "bf16")))
    with pytest.raises(UsageError, match=r"--precision bf16: x86-64-v3 has no products of bfloat16.*znver4"):
        cpu.passes(CompilerOptions("auto", cpu.isa("haswell"), "bf16"))
    with pytest.raises(UsageError, match="--precision fp8: choose one of float32, bf16"):
        cpu.passes(CompilerOptions("auto", cpu.isa("znver4"), "fp8"))
