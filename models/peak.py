"""How much of the machine's peak the products of a model take: their operations over the time of the whole run.

The peak is a loop of fused multiply-adds in registers, one thread. bfloat16 does twice as many (558 against 279 GFLOP/s
on a Zen 5 core).
"""

from __future__ import annotations

import ctypes
import math
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.isa import host
from tilegraph.codegen.library import link
from tilegraph.diagnostics import Diagnostics
from tilegraph.spec.dims import Dim, parse

_SUMS, _STEPS, _RUNS = 24, 4096, 400
_FASTER = {"float32": 1.0, "bf16": 2.0}


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


@lru_cache(maxsize=1)
def peak() -> float:
    """Float32 operations a second of one thread, the most of some hundred short runs; 0 below 256 bits."""
    isa = host()
    lanes = isa.vector_bits // 32
    if lanes < 8:
        return 0.0
    e = Emitter()
    count = _SUMS if lanes >= 16 else 12
    out = e.output(0, "float")
    sums = [e.local(f"acc{k}", "float32", lanes) for k in range(count)]
    factor = e.math.share(e.read(out, "float32", 0, lanes))
    for acc in sums:
        e.write(acc, 0, factor, lanes)
    with e.loop("k", t.Sub(e.end, e.begin), e.begin):
        for acc in sums:
            e.write(acc, 0, e.math.fma(e.read(acc, "float32", 0, lanes), factor, factor), lanes)
    for k, acc in enumerate(sums):
        e.write(out, k * lanes, e.read(acc, "float32", 0, lanes), lanes)
    made = e.finish("tg_peak", [], extent=Dim.of(_STEPS), align=1, scratch=Dim.of(0), grain=Dim.of(1))
    triple = "aarch64-linux-gnu" if isa.base.startswith("armv8") else "x86_64-linux-gnu"
    data = t.compile_object(made.func, triple=triple, mcpu=isa.llvm_mcpu, mattr=[])
    memory = (ctypes.c_float * (count * lanes + 16))(*([0.5] * (count * lanes)))
    start = ctypes.addressof(memory)
    values = (_Any * 4)(_Any(4, 0, start + -start % 64), _Any(4, 0, 0), _Any(1, 0, 0), _Any(1, 0, _STEPS))
    with tempfile.TemporaryDirectory(prefix="tilegraph-peak-") as folder:
        path = Path(folder) / "peak.so"
        link({"tg_peak": data}, path)
        entry = ctypes.CDLL(str(path))["__tvm_ffi_tg_peak"]
    best = math.inf
    for _ in range(_RUNS):
        begin = time.perf_counter()
        if entry(None, values, 4, ctypes.byref(_Any())):
            raise RuntimeError("the loop that measures the peak failed")
        best = min(best, time.perf_counter() - begin)
    return 2.0 * lanes * count * _STEPS / best


def product_flop(original: Path, decisions: Diagnostics, feeds: Mapping[str, Any]) -> float:
    """Float32 operations' worth of the products that became kernels, on `feeds`; bfloat16 counts half. NaN where a
    number of rows is not known from the inputs' shapes."""
    sizes: dict[str, int] = {}
    for value in ir.load(original).graph.inputs:
        if value.shape is not None and value.name in feeds:
            pairs = zip(value.shape, feeds[value.name].shape, strict=True)
            sizes |= {str(dim.value): int(size) for dim, size in pairs if not isinstance(dim, int)}
    total = 0.0
    for d in decisions.of("gemm", taken=True):
        rows = parse(d.data["rows"])
        if not rows.symbols <= sizes.keys():
            return math.nan
        flop = 2.0 * rows.evaluate(sizes) * d.data["depth"] * d.data["columns"]
        total += flop / _FASTER[d.data.get("precision", "float32")]
    return total
