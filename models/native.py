"""A generated kernel in this process, called as the plugin calls it, for what times kernels alone."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.generated import Generated
from tilegraph.codegen.isa import Isa
from tilegraph.codegen.library import link

_POINTER, _INTEGER = 4, 1


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


def bound(made: Generated, isa: Isa, pointers: Sequence[int]) -> Callable[[], None]:
    """Compiles `made`, whose extents are all known, for the addresses of its inputs, results and scratch (0 for none).
    A call does the whole extent and costs little beside; RuntimeError if the kernel fails."""
    symbol = made.kernel.symbol
    data = t.compile_object(made.func, triple=isa.triple, mcpu=isa.llvm_mcpu, mattr=[])
    with tempfile.TemporaryDirectory(prefix="tilegraph-kernel-") as folder:
        path = Path(folder) / "kernel.so"
        link({symbol: data}, path)
        entry = ctypes.CDLL(str(path))[f"__tvm_ffi_{symbol}"]

    numbers = 0, made.kernel.extent.value
    values = (_Any * (len(pointers) + 2))(*(_Any(_POINTER if p else 0, 0, p) for p in pointers),
                                          *(_Any(_INTEGER, 0, n) for n in numbers))
    count, result = len(values), ctypes.byref(_Any())

    def call() -> None:
        if entry(None, values, count, result):
            raise RuntimeError(f"kernel {symbol} failed")

    return call
