"""Linking what TVM really writes: entries run, slots are refused, and the bytes do not change."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tilegraph.codegen import elf
from tilegraph.codegen.isa import FEATURES, from_mcpu, known_cpus
from tilegraph.codegen.library import link
from tilegraph.errors import InternalError

tvm = pytest.importorskip("tvm")
from tvm import tirx as X  # noqa: E402
from tvm.ir import PointerType, PrimType  # noqa: E402
from tvm.target.codegen import llvm_get_cpu_features, llvm_is_valid_cpu  # noqa: E402
from tvm.tirx.build import codegen_build  # noqa: E402

LANES = 8


class Any(ctypes.Structure):
    """tvm-ffi's TVMFFIAny: a type index (4 an opaque pointer, 1 an integer) and 8 bytes of value."""

    _fields_ = [("type", ctypes.c_int32), ("unused", ctypes.c_uint32), ("value", ctypes.c_int64)]


def scale(symbol: str, factor: float, folder: Path, *, parallel: bool = False) -> bytes:
    """The object of y[i] = x[i] * factor for i < end * LANES."""
    def pointer(name: str) -> object:
        return X.Var(name, PointerType(PrimType("float32")))

    x, y, begin, end = pointer("x"), pointer("y"), X.Var("begin", "int64"), X.Var("end", "int64")
    source = X.decl_buffer((end * LANES,), "float32", name="X", layout=None)
    target = X.decl_buffer((end * LANES,), "float32", name="Y", layout=None)
    index = X.Var("i", "int64")
    lanes = X.Ramp(index * LANES, X.IntImm("int64", 1), LANES)
    product = X.Mul(X.BufferLoad(source, [lanes]), X.Broadcast(X.FloatImm("float32", factor), LANES))
    steps = [X.DeclBuffer(source, data=x), X.DeclBuffer(target, data=y),
             X.For(index, X.IntImm("int64", 0), end, X.ForKind.PARALLEL if parallel else X.ForKind.SERIAL,
                   X.BufferStore(target, product, [lanes]))]
    function = X.PrimFunc([x, y, begin, end], X.SeqStmt(steps)).with_attr("global_symbol", symbol) \
        .with_attr("tirx.noalias", True)
    target_ = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    module = tvm.IRModule({symbol: function})
    passes = X.transform
    for step in (passes.BindTarget(target_.with_host(target_)), passes.FlattenBuffer(), passes.VectorizeLoop(True),
                 passes.AnnotateEntryFunc(), passes.SplitHostDevice(), passes.MakePackedAPI(),
                 passes.LowerTVMBuiltin(), passes.LowerIntrin()):
        module = step(module)
    path = folder / f"{symbol}.o"
    codegen_build(module, target_).write_to_file(str(path), "o")
    return path.read_bytes()


def call(loaded: ctypes.CDLL, symbol: str, x: np.ndarray, y: np.ndarray, *, opaque: int = 4) -> int:
    args = (Any * 4)(Any(opaque, 0, x.ctypes.data), Any(4, 0, y.ctypes.data), Any(1, 0, 0), Any(1, 0, x.size // LANES))
    result = Any()
    return int(loaded.__getitem__(f"__tvm_ffi_{symbol}")(None, args, 4, ctypes.byref(result)))


def test_two_kernels_in_one_library(tmp_path: Path) -> None:
    objects = {f"tg_{n}": scale(f"tg_{n}", factor, tmp_path) for n, factor in (("two", 2.0), ("half", 0.5))}
    link(objects, tmp_path / "kernels.so")
    data = (tmp_path / "kernels.so").read_bytes()
    assert {s.name for s in elf.symbols(data, dynamic=True) if s.defined} == \
        {"__tvm_ffi_tg_two", "__tvm_ffi_tg_half", "tilegraph_set_error_parts"}
    assert all(n.startswith(("libc.", "libm.")) for n in elf.needed(data))
    loaded = ctypes.CDLL(str(tmp_path / "kernels.so"))
    x = np.arange(64, dtype=np.float32)
    y = np.zeros_like(x)
    assert call(loaded, "tg_two", x, y) == 0
    np.testing.assert_array_equal(y, x * 2)
    assert call(loaded, "tg_half", x, y) == 0
    np.testing.assert_array_equal(y, x / 2)


def test_its_own_checks_reach_the_error_pointer(tmp_path: Path) -> None:
    link({"tg_two": scale("tg_two", 2.0, tmp_path)}, tmp_path / "kernels.so")
    loaded = ctypes.CDLL(str(tmp_path / "kernels.so"))
    said: list[str] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
    report = kind(lambda name, parts, n: said.append(
        f"{(name or b'').decode()}: " + b"".join(parts[i] or b"" for i in range(n)).decode()))
    ctypes.c_void_p.in_dll(loaded, "tilegraph_set_error_parts").value = ctypes.cast(report, ctypes.c_void_p).value
    x = np.zeros(8, np.float32)
    assert call(loaded, "tg_two", x, x, opaque=1) != 0  # an integer where a pointer belongs
    (message,) = said
    assert "TypeError" in message


def test_compiling_and_linking_again_gives_the_same_bytes(tmp_path: Path) -> None:
    libraries = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        objects = {"tg_two": scale("tg_two", 2.0, tmp_path / name)}
        libraries.append((objects, link(objects, tmp_path / name / "kernels.so")))
    assert libraries[0] == libraries[1]


def test_a_kernel_that_needs_tvms_runtime_is_refused(tmp_path: Path) -> None:
    data = scale("tg_threads", 2.0, tmp_path, parallel=True)
    with pytest.raises(InternalError, match=r"calls TVM's runtime .*__TVMBackendParallelLaunch"):
        link({"tg_threads": data}, tmp_path / "kernels.so")


def test_the_table_of_cpus_agrees_with_llvm() -> None:
    """Every name here means what LLVM's own feature list says; LLVM's other names work through it."""
    def features(name: str) -> list[str]:
        if not llvm_is_valid_cpu(name, "x86_64-linux-gnu"):
            return []
        target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": name})
        return [str(f) for f in llvm_get_cpu_features(target)]

    from tilegraph.codegen import isa

    names = [n for n in known_cpus() if n not in ("native", "armv8-a")]
    assert len(names) > 40
    for name in names:
        known = features(name)
        base = isa._level(known, lambda level: isa._LEVELS[level].values())
        assert isa.Isa(base, isa._allowed(base, [f for f in FEATURES if f in known])) == from_mcpu(name), name
    assert from_mcpu("diamondrapids", features).base == "x86-64-v4"
