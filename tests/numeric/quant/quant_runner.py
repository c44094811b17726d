"""Compiles a product whose matrix is computed from constants, and runs it with these laid out as the compiler does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.numeric.codegen.runner import Compiled, loaded
from tests.unit.fusion.parse import model
from tilegraph.codegen.gemm import generate
from tilegraph.codegen.isa import Isa, host
from tilegraph.compiler.tables import pack_table
from tilegraph.ops.gemm import lower_gemm, plan_gemm

Array = np.ndarray[Any, Any]


def compiled(text: str, isa: Isa | None = None, opset: int = 21) -> Compiled:
    graph = model(text, opset)
    lowered = lower_gemm(list(graph.graph), list(graph.graph.outputs), {"": opset, "com.microsoft": 1})
    isa = isa or host()
    made = generate(plan_gemm(lowered), "tg_test", isa.vector_bits, isa.features)
    return Compiled(lowered, None, made.kernel, *loaded(made, isa))  # type: ignore[arg-type]


def run(made: Compiled, feeds: dict[str, Array], tasks: int = 2, offset: int = 4) -> Array:
    """`feeds` hold the constants as the model has them."""
    names = {slot: value.name for slot, value in made.lowered.inputs}
    known = dict(feeds)
    for slot, how in made.kernel.filters:
        array = feeds[names[slot]]
        packed = pack_table(array, how)
        known[names[slot]] = packed.reshape(math.prod(packed.shape), *(1,) * (array.ndim - 1))
    return made.run(known, tasks, offset)[0]
