"""The only module that imports from TVM: every name that moves between releases is here.

Kernels are lowered with a short pass list of our own. TVM's simplifier is left out on purpose: it is not IEEE (it folds
x*0, x-x and x!=x) and cannot bind vectors of bool, and our kernels are already in the form that they should have.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx as X
from tvm.ir import PointerType, PrimType
from tvm.tirx.build import codegen_build

from tilegraph.errors import EnvironmentProblem

_OBJECT_BYTES = 4 << 20  # the largest of 5,000 kernels had .35 MB

Expr = Any
Stmt = Any
Buffer = Any
Var = Any

Add, Sub, Mul, Div, Rem, Min, Max = X.Add, X.Sub, X.Mul, X.Div, X.Mod, X.Min, X.Max  # integers: towards zero
EQ, NE, LT, LE, And, Or, Not = X.EQ, X.NE, X.LT, X.LE, X.And, X.Or, X.Not
Select, Cast, Ramp, Broadcast, Shuffle = X.Select, X.Cast, X.Ramp, X.Broadcast, X.Shuffle
BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight = X.BitwiseAnd, X.BitwiseOr, X.BitwiseXor, X.LShift, X.RShift
BufferLoad, BufferStore, IfThenElse = X.BufferLoad, X.BufferStore, X.IfThenElse


def var(name: str, dtype: str) -> Var:
    return X.Var(name, dtype)


def pointer(name: str, dtype: str) -> Var:
    return X.Var(name, PointerType(PrimType(dtype)))


def int_imm(dtype: str, value: int) -> Expr:
    return X.IntImm(dtype, value)


def float_imm(dtype: str, value: float) -> Expr:
    return X.FloatImm(dtype, value)


def intrinsic(dtype: str, name: str, *args: Expr) -> Expr:
    """An LLVM intrinsic, overloaded by its argument types."""
    return X.call_llvm_pure_intrin(dtype, name, *args)


def external(dtype: str, name: str, *args: Expr) -> Expr:
    return X.call_pure_extern(dtype, name, *args)


def import_llvm(code: str, body: Stmt) -> Stmt:
    """`body` with the functions of a text of LLVM IR at hand, to be called by `external`."""
    return X.AttrStmt(X.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(code), body)


def check(condition: Expr, reason: str) -> Stmt:
    """Ends the kernel with the error `reason` unless the condition holds."""
    text = tvm.ir.StringImm
    return X.AssertStmt(condition, text("invalid input"), [text(reason)])


def prefetch(buffer: Buffer, at: Expr) -> Stmt:
    """Asks for the cache line of an element. It need not exist: a hint reads nothing and cannot fail."""
    read, all_levels, data = (X.IntImm("int32", k) for k in (0, 3, 1))
    return X.Evaluate(X.call_llvm_intrin("void", "llvm.prefetch", X.address_of(BufferLoad(buffer, [at])), read,
                                         all_levels, data))


def reinterpret(dtype: str, a: Expr) -> Expr:
    return X.reinterpret(dtype, a)


def flat_buffer(name: str, dtype: str, size: Expr) -> Buffer:
    return X.decl_buffer((size,), dtype, name=name, layout=None)


def declare(buffer: Buffer, data: Var) -> Stmt:
    return X.DeclBuffer(buffer, data=data)


def local_buffer(name: str, dtype: str, size: int) -> tuple[Buffer, Stmt]:
    """A few lanes on the stack, which LLVM keeps in registers."""
    buffer = X.decl_buffer((size,), dtype, name=name, scope="local", layout=None)
    return buffer, X.AllocBuffer(buffer)


def loop(index: Var, start: Expr, extent: Expr, body: Stmt) -> Stmt:
    return X.For(index, start, extent, X.ForKind.SERIAL, body)


def sequence(stmts: list[Stmt]) -> Stmt:
    return stmts[0] if len(stmts) == 1 else X.SeqStmt(stmts)


def prim_func(name: str, params: list[Var], body: Stmt) -> Any:
    func = X.PrimFunc(params, body)
    return func.with_attr("global_symbol", name).with_attr("tirx.noalias", True)


def text(func: Any) -> str:
    """The function as TVMScript, for dumps."""
    return str(func)


def _lower(func: Any, target: Any) -> Any:
    t = X.transform
    module = tvm.IRModule({func.attrs["global_symbol"]: func})
    module = t.BindTarget(target.with_host(target))(module)
    for step in (t.AnnotateEntryFunc(), t.SplitHostDevice(), t.MakePackedAPI()):
        module = step(module)
    return module


@contextlib.contextmanager
def _room_for_objects() -> Iterator[None]:
    """A limit of the files that a process writes (ulimit -f) holds in memory, too: it is lifted meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    if hard != resource.RLIM_INFINITY and hard < _OBJECT_BYTES:
        raise EnvironmentProblem(f"this process may write files of {hard} bytes at most, and compiling a kernel takes "
                                 f"up to {_OBJECT_BYTES} in memory; raise the limit (ulimit -f)")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def compile_object(func: Any, *, triple: str, mcpu: str, mattr: list[str]) -> bytes:
    """The ELF object of one kernel."""
    options: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    if mattr:
        options["mattr"] = mattr
    target = tvm.target.Target(options)
    module = codegen_build(_lower(func, target), target)
    if hasattr(os, "memfd_create"):
        # LLVM ends the process where it cannot write, so it writes to memory: a disk may be full.
        with open(os.memfd_create("kernel.o"), "rb") as file, _room_for_objects():
            module.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
            return file.read()
    with tempfile.TemporaryDirectory(prefix="tilegraph-") as folder:
        path = Path(folder) / "kernel.o"
        module.write_to_file(str(path), "o")
        return path.read_bytes()


def assembly(func: Any, *, triple: str, mcpu: str, mattr: list[str], form: str = "asm") -> str:
    """The kernel's assembly or LLVM IR ("ll"), for dumps and for reading."""
    options: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    if mattr:
        options["mattr"] = mattr
    target = tvm.target.Target(options)
    return str(codegen_build(_lower(func, target), target).inspect_source(form))



