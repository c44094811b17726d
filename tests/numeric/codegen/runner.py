"""Runs one generated kernel on numpy arrays, through the serving side's calling convention."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.isa import host
from tilegraph.codegen.library import link
from tilegraph.codegen.rowkernel import generate
from tilegraph.ops.lower import lower_region
from tilegraph.ops.prims import Lowered
from tilegraph.ops.space import plan
from tilegraph.spec.dims import Dim


class _Any(ctypes.Structure):
    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64)]


def run_region(nodes, outputs: list[ir.Value], feeds: dict[str, np.ndarray], opset: int = 18, tasks: int = 1,
               isa=None, offset: int = 0):
    """Lowers, plans, compiles and runs a region; `feeds` by value name. `offset` misaligns every buffer (bytes)."""
    lowered = lower_region(nodes, outputs, {"": opset, "com.microsoft": 1})
    return run_lowered(lowered, feeds, tasks, isa, offset)


def run_lowered(lowered: Lowered, feeds: dict[str, np.ndarray], tasks: int = 1, isa=None, offset: int = 0):
    isa = isa or host()
    space = plan(lowered)
    kernel = generate(space, "tg_test", isa.vector_bits)
    data = t.compile_object(kernel.func, triple="x86_64-linux-gnu", mcpu=isa.base, mattr=list(isa.llvm_mattr()))
    binding: dict[str, int] = {}
    values = dict(lowered.inputs)
    for value in values.values():
        for dim, size in zip(value.shape, feeds[value.name].shape, strict=True):
            if not isinstance(dim, int):
                binding[Dim.of(dim.value).bare_symbol or str(dim)] = size
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.so"
        link({"tg_test": data}, path)
        library = ctypes.CDLL(str(path))
    entry = library.__getattr__("__tvm_ffi_tg_test")
    keep, args = [], []

    def aligned(array: np.ndarray) -> np.ndarray:
        raw = np.zeros(array.nbytes + 64 + offset, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        view = raw[start:start + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        keep.append(raw)
        return view

    def pointer(array: np.ndarray) -> None:
        args.append((4, array.ctypes.data))

    for slot in kernel.slots:
        pointer(aligned(np.ascontiguousarray(feeds[values[slot].name])))
    results = []
    for k in kernel.outputs:
        stored = lowered.stored[k]
        dtype = {"float": "float32", "double": "float64", "bfloat16": "uint16"}.get(stored, stored)
        shape = tuple(d.evaluate(binding) for d in lowered.outputs[k].shape)
        results.append(aligned(np.full(shape, 77, np.dtype(dtype))))
        pointer(results[-1])
    extent = kernel.extent.evaluate(binding)
    scratch = np.zeros(max(kernel.scratch.evaluate(binding), 1) + 64, np.uint8)
    pointer(scratch[-scratch.ctypes.data % 64:])
    args += [(1, binding[s]) for s in kernel.sizes]
    step = -(-extent // tasks)
    step = -(-step // kernel.align) * kernel.align
    for begin in range(0, extent, max(step, 1)):
        full = [*args, (1, begin), (1, min(begin + step, extent))]
        packed = (_Any * len(full))(*[_Any(kind, 0, value) for kind, value in full])
        code = entry(None, packed, len(full), ctypes.byref(_Any()))
        assert code == 0
    return results, kernel, space
