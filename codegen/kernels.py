"""Kernels by content: each lowered region is generated and compiled once, and kept in the cache with its signature."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilegraph.codegen.cache import KernelCache, kernel_key
from tilegraph.codegen.generated import Generated, Kernel
from tilegraph.codegen.isa import Isa
from tilegraph.codegen.version import GENERATOR, TVM_VERSION
from tilegraph.ops.attention import plan_attention, plan_trusting
from tilegraph.ops.conv import plan_conv, plan_fast, plan_join
from tilegraph.ops.gemm import plan_gemm
from tilegraph.ops.prims import Decline, Lowered, signature
from tilegraph.ops.region import plan, plan_small
from tilegraph.spec.schedule import DEFAULT, Schedule

_SEPARATOR = b"\n"

# By kind of composite: what plans the kernel, and the module whose `generate` emits it.
_GENERATORS: dict[str, tuple[Callable[[Lowered], Any], str]] = {
    "Region": (plan, "tilegraph.codegen.rows"),
    "Small": (plan_small, "tilegraph.codegen.rows"),
    "Attention": (plan_attention, "tilegraph.codegen.attention"),
    "AttentionTrust": (plan_trusting, "tilegraph.codegen.attention"),
    "AttentionCache": (plan_attention, "tilegraph.codegen.attention.caches"),
    "AttentionTable": (plan_attention, "tilegraph.codegen.attention.tables"),
    "AttentionSum": (plan_attention, "tilegraph.codegen.attention.pieces"),
    "Gemm": (plan_gemm, "tilegraph.codegen.gemm"),
    "Conv": (plan_conv, "tilegraph.codegen.conv"),
    "ConvFast": (plan_fast, "tilegraph.codegen.conv"),
    "Pool": (plan_conv, "tilegraph.codegen.conv"),
    "Join": (plan_join, "tilegraph.codegen.conv.join"),
}

_WITH_FEATURES = frozenset({"Gemm"})  # whose generator asks what there is beside the base level


class KernelStore:
    """Compiles regions for one ISA. `objects` collects what a library is linked from, by symbol."""

    def __init__(self, isa: Isa, cache: KernelCache, dump: Callable[[str, str], None] | None = None,
                 schedules: Mapping[str, Schedule] | None = None) -> None:
        """`schedules`: those of composites, by the names of their functions."""
        self.isa = isa
        self.schedules = schedules or {}
        self.cache = cache
        self.dump = dump
        self.objects: dict[str, bytes] = {}
        self.compiled = 0
        self._known: dict[str, Kernel] = {}

    def kernel(self, lowered: Lowered, kind: str = "Region", schedule: Schedule = DEFAULT) -> Kernel:
        """The kernel of a composite: known, kept in the cache, or compiled now. Raises `Decline`.

        `schedule`: one of `schedules.candidates`.
        """
        source = f"{kind}\n" + signature(lowered.outputs) + "\nstored " + ",".join(lowered.stored)
        if schedule != DEFAULT:
            source += f"\nschedule {schedule}"
        key = kernel_key(source, generator=GENERATOR, tvm=TVM_VERSION, isa=str(self.isa))
        if key in self._known:
            return self._known[key]
        kept = None if self.dump is not None else self.cache.get(key)
        if kept is not None:
            header, _, data = kept.partition(_SEPARATOR)
            kernel = Kernel.from_json(json.loads(header))
        else:
            kernel, data = self._compile(lowered, kind, "tg_" + key[:20], schedule)
            self.cache.put(key, json.dumps(kernel.to_json()).encode() + _SEPARATOR + data)
        self.objects[kernel.symbol] = data
        self._known[key] = kernel
        return kernel

    def _compile(self, lowered: Lowered, kind: str, symbol: str, schedule: Schedule) -> tuple[Kernel, bytes]:
        # TVM takes a second to import: only when something has to be compiled.
        from tilegraph.codegen import tvm_compat

        planned, module = _GENERATORS[kind]
        more = {"features": self.isa.features} if kind in _WITH_FEATURES else {}
        generate = importlib.import_module(module).generate
        space = planned(lowered)
        if schedule != DEFAULT:
            space = replace(space, schedule=schedule)
        made: Generated = generate(space, symbol, self.isa.vector_bits, **more)
        if self.dump is not None:
            self.dump(symbol, tvm_compat.text(made.func))
        if lacking := set(made.kernel.features) - set(self.isa.features):
            raise Decline(f"{self.isa} has no {', '.join(sorted(lacking))}")
        # Only what this kernel needs, so that others are the same whatever else is allowed.
        isa = Isa(self.isa.base, made.kernel.features)
        data = tvm_compat.compile_object(made.func, triple=isa.triple, mcpu=isa.llvm_mcpu, mattr=isa.llvm_mattr())
        self.compiled += 1
        return made.kernel, data

    @property
    def features(self) -> tuple[str, ...]:
        """What the kernels need beside the base level."""
        return tuple(sorted({f for kernel in self._known.values() for f in kernel.features}))
