"""Instruction sets: a base level plus a short list of named features.

Kernels are compiled for a level (x86-64-v3, x86-64-v4, ...) and not for a CPU name: LLVM's list for one CPU has
some eighty entries (tuning flags among them) that nobody could check before the first call. What is on top of the
level comes from `FEATURES`, and each name is checked by the serving side. Levels: x86-64 psABI, section 3.1.1,
"Micro-architecture levels".
"""

from __future__ import annotations

import difflib
import platform
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tilegraph.errors import EnvironmentProblem, UsageError

# Base level -> width of its vector registers, in bits. The x86 levels are in rising order.
BASES = {"x86-64": 128, "x86-64-v2": 128, "x86-64-v3": 256, "x86-64-v4": 512, "armv8-a": 128}

# Features beyond the base that a kernel may use: LLVM's name -> the kernel's name in /proc/cpuinfo.
FEATURES = {
    "amx-bf16": "amx_bf16",
    "amx-fp16": "amx_fp16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vnni": "avx512_vnni",
    "avxvnni": "avx_vnni",
}
_NEEDS_V4 = frozenset({"avx512bf16", "avx512fp16", "avx512vnni"})
_NEEDS_TILE = frozenset({"amx-bf16", "amx-fp16", "amx-int8"})

# What each level adds to the one below: /proc/cpuinfo's name -> LLVM's.
_LEVELS: dict[str, dict[str, str]] = {
    "x86-64-v2": {"cx16": "cx16", "lahf_lm": "sahf", "popcnt": "popcnt", "pni": "sse3", "ssse3": "ssse3",
                  "sse4_1": "sse4.1", "sse4_2": "sse4.2"},
    "x86-64-v3": {"avx": "avx", "avx2": "avx2", "bmi1": "bmi", "bmi2": "bmi2", "f16c": "f16c", "fma": "fma",
                  "abm": "lzcnt", "movbe": "movbe", "xsave": "xsave"},
    "x86-64-v4": {"avx512f": "avx512f", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
                  "avx512vl": "avx512vl"},
}

_VNNI = ("avx512vnni",)
_ZEN4 = ("avx512bf16", "avx512vnni")
_AMX = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512fp16", "avx512vnni", "avxvnni")

# CPU names in LLVM's spelling. Sources: LLVM's X86TargetParser and the vendors' manuals.
_CPUS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in BASES},
    **dict.fromkeys(("nehalem", "westmere", "sandybridge", "ivybridge", "silvermont", "goldmont", "goldmont-plus",
                     "tremont", "btver2"), ("x86-64-v2", ())),
    **dict.fromkeys(("haswell", "broadwell", "skylake", "znver1", "znver2", "znver3"), ("x86-64-v3", ())),
    **dict.fromkeys(("alderlake", "raptorlake", "meteorlake", "gracemont", "sierraforest", "grandridge", "arrowlake",
                     "arrowlake-s", "lunarlake", "pantherlake", "clearwaterforest"), ("x86-64-v3", ("avxvnni",))),
    **dict.fromkeys(("skylake-avx512", "cannonlake"), ("x86-64-v4", ())),
    **dict.fromkeys(("cascadelake", "icelake-client", "icelake-server", "tigerlake", "rocketlake"),
                    ("x86-64-v4", _VNNI)),
    **dict.fromkeys(("cooperlake", "znver4"), ("x86-64-v4", _ZEN4)),
    "znver5": ("x86-64-v4", (*_ZEN4, "avxvnni")),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids"), ("x86-64-v4", _AMX)),
    **dict.fromkeys(("graniterapids", "graniterapids-d"), ("x86-64-v4", (*_AMX, "amx-fp16"))),
}


@dataclass(frozen=True)
class Isa:
    """A base level and sorted features in LLVM's spelling. `vector_bits` is the width of a vector register."""

    base: str
    features: tuple[str, ...] = ()
    vector_bits: int = 0

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise UsageError(f"unknown instruction set {self.base!r}; known: {', '.join(BASES)}")
        unknown = sorted(set(self.features) - set(FEATURES))
        if unknown:
            raise UsageError(f"unknown instruction set feature {', '.join(unknown)}; known: {', '.join(FEATURES)}")
        allowed = _allowed(self.base, self.features)
        if len(allowed) != len(set(self.features)):
            odd = sorted(set(self.features) - set(allowed))
            raise UsageError(f"{self.base} cannot have {', '.join(odd)}: avx512* needs x86-64-v4, avxvnni x86-64-v3, "
                             "amx-* also amx-tile")
        object.__setattr__(self, "features", allowed)
        object.__setattr__(self, "vector_bits", self.vector_bits or BASES[self.base])

    def __str__(self) -> str:
        """The manifest's and the cache key's form, such as x86-64-v4+avx512bf16; `parse` reads it."""
        return "+".join((self.base, *self.features))

    @staticmethod
    def parse(text: str) -> Isa:
        """Reads what `str` wrote. Raises `UsageError` for anything else."""
        base, *features = text.split("+")
        return Isa(base, tuple(features))

    @property
    def llvm_mcpu(self) -> str:
        """LLVM's name of the base level."""
        return "generic" if self.base == "armv8-a" else self.base

    @property
    def triple(self) -> str:
        """LLVM's name of the platform."""
        return "aarch64-linux-gnu" if self.base.startswith("armv8") else "x86_64-linux-gnu"

    def llvm_mattr(self) -> list[str]:
        """The features as LLVM attributes, such as ["+avx512bf16"]."""
        base = ["+v8a"] if self.base == "armv8-a" else []
        return [*base, *("+" + f for f in self.features)]


def host() -> Isa:
    """What this machine can run, read from /proc/cpuinfo.

    Raises `EnvironmentProblem` if it cannot be read or the processor is neither x86-64 nor aarch64.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EnvironmentProblem(f"cannot read /proc/cpuinfo ({error.strerror}); name the CPU with --mcpu") from error
    return from_cpuinfo(text, platform.machine())


def from_cpuinfo(text: str, machine: str) -> Isa:
    """The ISA of a machine whose /proc/cpuinfo is `text`: what all of its processors have (they may differ)."""
    if machine in ("aarch64", "arm64"):
        return Isa("armv8-a")
    if machine not in ("x86_64", "AMD64"):
        raise EnvironmentProblem(f"no kernels can be compiled for a {machine} processor; name another with --mcpu")
    each = [set(line.split(":", 1)[1].split()) for line in text.splitlines() if re.match(r"flags\s*:", line)]
    if not each:
        raise EnvironmentProblem("/proc/cpuinfo lists no CPU flags; name the CPU with --mcpu")
    flags = set.intersection(*each)
    base = _level(flags, lambda level: _LEVELS[level])
    return Isa(base, _allowed(base, [f for f, flag in FEATURES.items() if flag in flags]))


def from_mcpu(name: str, llvm_features: Callable[[str], Collection[str]] | None = None) -> Isa:
    """The ISA of a CPU in LLVM's spelling (haswell, znver4, ...), of a base level, or of this machine ("native").

    `llvm_features(name)` gives LLVM's own feature list of a CPU, empty for one that it does not know; with it every
    x86-64 CPU of LLVM is accepted and not only the table here. Raises `UsageError` for an unknown name.
    """
    if name == "native":
        return host()
    if name in _CPUS:
        return Isa(*_CPUS[name])
    known = set(llvm_features(name)) if llvm_features is not None else set()
    if known and not {"64bit", "sse2"} <= known:
        raise UsageError(f"--mcpu {name}: not an x86-64 processor; choose one such as x86-64-v3, haswell or znver4")
    if known:
        base = _level(known, lambda level: _LEVELS[level].values())
        return Isa(base, _allowed(base, [f for f in FEATURES if f in known]))
    close = difflib.get_close_matches(name, _CPUS, n=3)
    some = close or ["native", "x86-64-v3", "x86-64-v4", "haswell", "skylake-avx512", "znver4", "sapphirerapids"]
    raise UsageError(f"--mcpu {name}: unknown CPU; {'did you mean' if close else 'known are'} {', '.join(some)}"
                     f"{'?' if close else ' and others'}")


def known_cpus() -> list[str]:
    """The names that `from_mcpu` accepts without LLVM's help."""
    return ["native", *sorted(_CPUS)]


def _level(have: Collection[str], needs: Callable[[str], Collection[str]]) -> str:
    """The highest level of which, and of all below it, every part is in `have`."""
    base = "x86-64"
    for level in _LEVELS:
        if not set(needs(level)) <= set(have):
            break
        base = level
    return base


def _allowed(base: str, features: Collection[str]) -> tuple[str, ...]:
    """Sorted, without what the base cannot carry (a hypervisor may hide AVX-512 and leave its extensions)."""
    kept = set(features)
    if base != "x86-64-v4":
        kept -= _NEEDS_V4
    if base not in ("x86-64-v3", "x86-64-v4"):
        kept.discard("avxvnni")
    if "amx-tile" not in kept or not base.startswith("x86-64"):
        kept -= _NEEDS_TILE
    if not base.startswith("x86-64"):
        kept.discard("amx-tile")
    return tuple(sorted(kept))
