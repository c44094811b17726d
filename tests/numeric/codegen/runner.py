"""Runs one generated kernel on numpy arrays, through the serving side's calling convention.

Every buffer lies between guard bytes, results and scratch start out poisoned, and operands must come back unchanged: a
kernel that writes outside, skips an element, or reads scratch before writing it is found whatever its answers are.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from tests.device.emulator import TRIPLE, Emulated
from tilegraph.codegen import tvm_compat as t
from tilegraph.codegen.generated import Generated, Kernel
from tilegraph.codegen.isa import Isa, host
from tilegraph.codegen.library import link
from tilegraph.codegen.rows import generate
from tilegraph.ops.lower import lower_region
from tilegraph.ops.prims import Lowered, signature
from tilegraph.ops.region import plan
from tilegraph.ops.space import Space
from tilegraph.spec.dims import Dim

Array = np.ndarray[Any, Any]
GUARD = 256  # bytes on either side of every buffer
_NUMPY = {"float": "float32", "double": "float64"}


class _Any(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64))


def numpy_dtype(stored: str) -> np.dtype[Any]:
    """The numpy dtype of an ONNX dtype name in lower case."""
    return np.dtype(ml_dtypes.bfloat16) if stored == "bfloat16" else np.dtype(_NUMPY.get(stored, stored))


class _Buffer:
    """Memory of `count` bytes at 64-byte alignment plus `offset`, filled with `poison`, between guard bytes."""

    fence = 0

    def __init__(self, count: int, offset: int, poison: int) -> None:
        self.raw = np.full(count + 2 * GUARD + 64 + offset, 0xA7, np.uint8)
        self.start = -self.raw.ctypes.data % 64 + GUARD + offset
        self.end = self.start + count
        self.inside[...] = poison

    @property
    def inside(self) -> Array:
        return self.raw[self.start:self.end]

    @property
    def address(self) -> int:
        return self.raw.ctypes.data + self.start

    def check(self, what: str) -> None:
        """AssertionError if the guard bytes were written."""
        for name, part in (("before", self.raw[:self.start]), ("after", self.raw[self.end:])):
            wrong = np.flatnonzero(part != 0xA7)
            assert not len(wrong), f"{len(wrong)} bytes {name} {what} were overwritten"


class _Fenced(_Buffer):
    """The same against a page that cannot be touched: before the memory, or behind it (then possibly misaligned)."""

    def __init__(self, count: int, poison: int, behind: bool) -> None:
        page = mmap.PAGESIZE
        room = -(-max(count, 1) // page) * page
        self.fence = 2 if behind else 1
        self.pages = mmap.mmap(-1, room + 2 * page)
        self.raw = np.frombuffer(self.pages, np.uint8)
        self.start = page + (room - count if behind else 0)
        self.end = self.start + count
        self.inside[...] = poison
        for fence in (0, page + room):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.raw.ctypes.data + fence), page, 0) == 0

    def check(self, what: str) -> None:
        """Nothing: a write outside ends the process."""


@dataclass
class Compiled:
    """A kernel in this process. `before`: what outputs hold when it starts, by number; the others are poisoned."""

    lowered: Lowered
    space: Space
    kernel: Kernel
    entry: Any
    library: Any
    before: dict[int, Array] = field(default_factory=dict)

    def run(self, feeds: Mapping[str, Array], tasks: int = 1, offset: int = 0) -> list[Array]:
        """The outputs; `feeds` by value name. `offset` misaligns every buffer (bytes)."""
        return self._run(feeds, tasks, lambda count, poison: _Buffer(count, offset, poison))

    def check_fences(self, feeds: Mapping[str, Array], tasks: int = 1) -> None:
        """AssertionError if the kernel reads or writes outside of its buffers. Runs it in a child process."""
        for behind in (False, True):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    self._run(feeds, tasks, partial(_Fenced, behind=behind))
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"memory {'behind' if behind else 'before'} a buffer was touched ({status})"

    def _run(self, feeds: Mapping[str, Array], tasks: int, buffer: Callable[[int, int], _Buffer]) -> list[Array]:
        kernel = self.kernel
        values = dict(self.lowered.inputs)
        binding: dict[str, int] = {}
        for value in values.values():
            for dim, size in zip(value.shape, feeds[value.name].shape, strict=True):
                if not isinstance(dim, int):
                    binding[Dim.of(dim.value).bare_symbol or str(dim)] = size
        sources = [np.ascontiguousarray(feeds[values[slot].name]) for slot in kernel.slots]
        operands = []
        for array in sources:
            operands.append(buffer(array.nbytes, 0))
            operands[-1].inside[...] = array.reshape(-1).view(np.uint8)
        places = list(kernel.outputs)
        shapes = [tuple(d.evaluate(binding) for d in self.lowered.outputs[k].shape) for k in places]
        dtypes = [numpy_dtype(self.lowered.stored[k]) for k in places]
        results = [buffer(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 0xC3)
                   for shape, dtype in zip(shapes, dtypes, strict=True)]
        for k, result in zip(places, results, strict=True):
            if k in self.before:
                result.inside[...] = self.before[k].reshape(-1).view(np.uint8)
        scratch = _Buffer(kernel.scratch.evaluate(binding), 0, 0xFF)  # always aligned
        extent = kernel.extent.evaluate(binding)
        step = -(-extent // tasks)
        step = -(-step // kernel.align) * kernel.align
        parts = [(begin, min(begin + step, extent)) for begin in range(0, extent, max(step, 1))]
        returned = self._call([*operands, *results, scratch], [binding[s] for s in kernel.sizes], parts)
        assert returned == [0] * len(parts)
        for k, (operand, array) in enumerate(zip(operands, sources, strict=True)):
            operand.check(f"operand {k}")
            assert np.array_equal(operand.inside, array.reshape(-1).view(np.uint8)), f"operand {k} was changed"
        for k, result in enumerate(results):
            result.check(f"result {k}")
        scratch.check("scratch")
        return [b.inside.copy().view(dtype).reshape(shape)
                for b, shape, dtype in zip(results, shapes, dtypes, strict=True)]

    def _call(self, memory: list[_Buffer], sizes: list[int], parts: list[tuple[int, int]]) -> list[int]:
        """What the kernel returns for each part [begin, end); the last memory is its scratch."""
        if isinstance(self.entry, Emulated):
            return self.entry.run(memory, sizes, parts)
        args = [*((4, b.address) for b in memory), *((1, size) for size in sizes)]
        returned = []
        for part in parts:
            memory[-1].inside[...] = 0xFF
            full = [*args, *((1, bound) for bound in part)]
            packed = (_Any * len(full))(*[_Any(kind, 0, value) for kind, value in full])
            returned.append(int(self.entry(None, packed, len(full), ctypes.byref(_Any()))))
        return returned


def loaded(made: Generated, isa: Isa) -> tuple[Any, Any]:
    """The entry of a kernel named tg_test, compiled and linked, and the library that it lives in; a program for an
    emulator where this machine cannot run it."""
    data = t.compile_object(made.func, triple=isa.triple, mcpu=isa.llvm_mcpu, mattr=isa.llvm_mattr())
    if isa.triple == TRIPLE and platform.machine() != "aarch64":
        return Emulated(data), None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.so"
        link({"tg_test": data}, path)
        library = ctypes.CDLL(str(path))
    return library["__tvm_ffi_tg_test"], library


_compiled: dict[tuple[str, str, int], tuple[Space, Kernel, Any, Any]] = {}


def compile_lowered(lowered: Lowered, isa: Isa | None = None) -> Compiled:
    """Plans, generates, compiles, links and loads; equal kernels once."""
    isa = isa or host()
    key = signature(lowered.outputs) + ",".join(lowered.stored), str(isa), isa.vector_bits
    if key not in _compiled:
        space = plan(lowered)
        made = generate(space, "tg_test", isa.vector_bits)
        _compiled[key] = space, made.kernel, *loaded(made, isa)
    return Compiled(lowered, *_compiled[key])


def lower(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], opset: int = 18) -> Lowered:
    return lower_region(nodes, outputs, {"": opset, "com.microsoft": 1})


def run_region(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], feeds: Mapping[str, Array], opset: int = 18,
               tasks: int = 1, isa: Isa | None = None, offset: int = 0) -> tuple[list[Array], Kernel, Space]:
    """Lowers, plans, compiles and runs a region."""
    return run_lowered(lower(nodes, outputs, opset), feeds, tasks, isa, offset)


def run_lowered(lowered: Lowered, feeds: Mapping[str, Array], tasks: int = 1, isa: Isa | None = None,
                offset: int = 0) -> tuple[list[Array], Kernel, Space]:
    """(outputs in the order of the kernel's, the kernel, its space)."""
    made = compile_lowered(lowered, isa)
    return made.run(feeds, tasks, offset), made.kernel, made.space
