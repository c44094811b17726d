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


def loaded(made: Generated, isa: Isa) -> Callable[[Sequence[int], int, int], None]:
    """Compiles `made`, whose extents are all known. Its call takes the addresses of inputs, results and scratch (0 for
    none) and the part [begin, end) to do; RuntimeError if the kernel fails."""
    symbol = made.kernel.symbol
    data = t.compile_object(made.func, triple=isa.triple, mcpu=isa.llvm_mcpu, mattr=[])
    with tempfile.TemporaryDirectory(prefix="tilegraph-kernel-") as folder:
        path = Path(folder) / "kernel.so"
        link({symbol: data}, path)
        entry = ctypes.CDLL(str(path))[f"__tvm_ffi_{symbol}"]

    def call(pointers: Sequence[int], begin: int, end: int) -> None:
        values = (_Any * (len(pointers) + 2))(*(_Any(_POINTER if p else 0, 0, p) for p in pointers),
                                              _Any(_INTEGER, 0, begin), _Any(_INTEGER, 0, end))
        if entry(None, values, len(values), ctypes.byref(_Any())):
            raise RuntimeError(f"kernel {symbol} failed")

    return call
