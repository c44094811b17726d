"""Levels and features: from /proc/cpuinfo, from CPU names, and back from their text."""

from __future__ import annotations

import pytest

from tilegraph.codegen import isa
from tilegraph.codegen.isa import Isa, from_cpuinfo, from_mcpu
from tilegraph.errors import EnvironmentProblem, UsageError

V2 = "fpu lm sse2 cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2"
V3 = V2 + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = V3 + " avx512f avx512bw avx512cd avx512dq avx512vl"


def info(*flags: str) -> str:
    return "".join(f"processor\t: {n}\nflags\t\t: {f}\nvmx flags\t: vnmi\n\n" for n, f in enumerate(flags))


@pytest.mark.parametrize(("flags", "text"), [
    ("fpu lm sse2", "x86-64"),
    (V2, "x86-64-v2"),
    (V3, "x86-64-v3"),
    (V3 + " avx_vnni", "x86-64-v3+avxvnni"),
    (V4, "x86-64-v4"),
    (V4 + " avx512_bf16 avx512_vnni gfni avx512_vp2intersect", "x86-64-v4+avx512bf16+avx512vnni"),
    (V4 + " amx_tile amx_bf16 avx512_fp16", "x86-64-v4+amx-bf16+amx-tile+avx512fp16"),
])
def test_levels_and_features_of_a_machine(flags: str, text: str) -> None:
    assert str(from_cpuinfo(info(flags, flags), "x86_64")) == text


@pytest.mark.parametrize("missing", ["movbe", "abm", "fma", "xsave"])
def test_a_level_needs_all_its_parts(missing: str) -> None:
    flags = " ".join(f for f in V4.split() if f != missing)
    assert from_cpuinfo(info(flags), "x86_64").base == "x86-64-v2"


def test_extensions_of_a_hidden_level_are_dropped() -> None:
    assert from_cpuinfo(info(V3 + " avx512_vnni avx512_bf16 amx_bf16"), "x86_64") == Isa("x86-64-v3")


def test_unequal_processors_give_what_all_have() -> None:
    assert str(from_cpuinfo(info(V4 + " avx_vnni", V3 + " avx_vnni"), "x86_64")) == "x86-64-v3+avxvnni"


def test_other_machines() -> None:
    assert from_cpuinfo("", "aarch64") == Isa("armv8-a")
    with pytest.raises(EnvironmentProblem, match="riscv64"):
        from_cpuinfo("", "riscv64")
    with pytest.raises(EnvironmentProblem, match="no CPU flags"):
        from_cpuinfo("processor: 0\n", "x86_64")


@pytest.mark.parametrize(("name", "base", "features", "bits"), [
    ("haswell", "x86-64-v3", (), 256),
    ("x86-64-v4", "x86-64-v4", (), 512),
    ("znver4", "x86-64-v4", ("avx512bf16", "avx512vnni"), 512),
    ("alderlake", "x86-64-v3", ("avxvnni",), 256),
    ("sapphirerapids", "x86-64-v4", ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avx512vnni",
                                     "avxvnni"), 512),
    ("nehalem", "x86-64-v2", (), 128),
    ("armv8-a", "armv8-a", (), 128),
])
def test_cpu_names(name: str, base: str, features: tuple[str, ...], bits: int) -> None:
    assert from_mcpu(name) == Isa(base, features)
    assert from_mcpu(name).vector_bits == bits


@pytest.mark.parametrize("name", [n for n in isa.known_cpus() if n != "native"])
def test_every_known_name_survives_its_text(name: str) -> None:
    assert Isa.parse(str(from_mcpu(name))) == from_mcpu(name)


def test_llvm_names() -> None:
    znver4 = from_mcpu("znver4")
    assert (znver4.llvm_mcpu, znver4.llvm_mattr()) == ("x86-64-v4", ["+avx512bf16", "+avx512vnni"])
    assert (from_mcpu("armv8-a").llvm_mcpu, from_mcpu("armv8-a").llvm_mattr()) == ("generic", ["+v8a"])


def test_names_that_only_llvm_knows() -> None:
    v3 = ["64bit", "sse2", "cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "bmi", "bmi2",
          "f16c", "fma", "lzcnt", "movbe", "xsave", "avxvnni", "macrofusion", "avx512vnni"]
    features = {"newlake": v3, "i486": ["x87"]}
    assert from_mcpu("newlake", lambda n: features.get(n, [])) == Isa("x86-64-v3", ("avxvnni",))
    with pytest.raises(UsageError, match="i486: not an x86-64 processor"):
        from_mcpu("i486", lambda n: features.get(n, []))
    with pytest.raises(UsageError, match="q9000: unknown CPU; known are native, x86-64-v3"):
        from_mcpu("q9000")
    with pytest.raises(UsageError, match=r"did you mean haswell\?"):
        from_mcpu("hasswell", lambda n: features.get(n, []))


@pytest.mark.parametrize(("text", "said"), [
    ("x86-64-v9", "unknown instruction set 'x86-64-v9'"),
    ("x86-64-v4+branchfusion", "unknown instruction set feature branchfusion"),
    ("x86-64-v3+avx512vnni", "x86-64-v3 cannot have avx512vnni"),
    ("x86-64-v4+amx-bf16", "x86-64-v4 cannot have amx-bf16"),
    ("armv8-a+amx-tile", "armv8-a cannot have amx-tile"),
])
def test_texts_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Isa.parse(text)


def test_the_order_of_features_does_not_matter() -> None:
    assert Isa("x86-64-v4", ("avx512vnni", "avx512bf16")) == Isa("x86-64-v4", ("avx512bf16", "avx512vnni"))
