"""Kernels for AArch64 are compiled to NEON code, wherever the tests run; tests/device runs them in an emulator."""

from __future__ import annotations

import struct

from tests.unit.fusion.parse import model
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.isa import Isa
from tilegraph.codegen.rows import generate
from tilegraph.ops.lower import lower_region
from tilegraph.ops.region import plan

TRIPLE, AARCH64 = "aarch64-linux-gnu", 183


def test_a_region_becomes_neon_code() -> None:
    graph = model("(float[7,70] x, float[70] b) => (float[7,70] y) "
                  "{ t = Add(x, b) u = Erf(t) y = Softmax<axis=-1>(u) }")
    isa = Isa("armv8-a")
    lowered = lower_region(list(graph.graph), list(graph.graph.outputs), {"": 20})
    made = generate(plan(lowered), "tg_test", isa.vector_bits)
    target = {"triple": TRIPLE, "mcpu": isa.llvm_mcpu, "mattr": isa.llvm_mattr()}
    data = t.compile_object(made.func, **target)  # type: ignore[arg-type]
    assert data[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", data, 18) == (AARCH64,)
    text = t.assembly(made.func, **target)  # type: ignore[arg-type]
    assert "fmla\tv" in text
    assert ".4s" in text
    assert "bl\terff" not in text, "a call for each element"
