"""Offsets above 2^31: the last unit of a product whose result no test could hold, in memory that is hardly touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from tests.numeric.codegen.runner import _Any
from tests.numeric.gemm.test_gemm_kernel import compiled, normal, wide
from tilegraph.compiler.packing import pack_columns

M, K, N = 70_000, 16, 40_000
NORESERVE = 0x4000  # of Linux; Python has no name for it


def test_offsets_need_64_bits() -> None:
    assert M * N > 1 << 31
    made = compiled(f"(float[{M},{K}] x, float[{K},{N}] w) => (float[{M},{N}] y) {{ y = MatMul(x, w) }}")
    (how,) = made.kernel.packed
    x, w = normal(M, K), normal(K, N, seed=1)
    packed = pack_columns(w, how.panel, how.transposed)
    result = mmap.mmap(-1, M * N * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    y = np.frombuffer(result, np.float32).reshape(M, N)
    by_slot = {how.slot: packed}
    operands = [by_slot.get(slot, x) for slot in made.kernel.slots]
    extent = made.kernel.extent.evaluate({})
    pointers = [(4, a.ctypes.data) for a in (*operands, y)]
    args = [*pointers, (4, 0), (1, extent - 1), (1, extent)]
    values = (_Any * len(args))(*[_Any(kind, 0, value) for kind, value in args])
    assert made.entry(None, values, len(args), ctypes.byref(_Any())) == 0
    got = y[-16:, -16:]
    assert got.std() > 1
    assert np.abs(got - wide(x[-16:]) @ wide(w[:, -16:])).max() < 1e-5
