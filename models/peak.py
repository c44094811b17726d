"""The machine's peak: a loop of fused multiply-adds in registers, one thread.

bfloat16 does twice as many (558 against 279 GFLOP/s on a Zen 5 core).
"""

from __future__ import annotations

import ctypes
import math
import time
from functools import lru_cache

from models.native import bound
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.emitter import Emitter
from tilegraph.codegen.isa import host
from tilegraph.spec.dims import Dim

_SUMS, _STEPS, _RUNS = 24, 4096, 400


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
    memory = (ctypes.c_float * (count * lanes + 16))(*([0.5] * (count * lanes)))
    start = ctypes.addressof(memory)
    run = bound(made, isa, [start + -start % 64, 0])
    best = math.inf
    for _ in range(_RUNS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return 2.0 * lanes * count * _STEPS / best
