"""Links compiled kernels into one shared library that needs libc and libm only.

Each kernel is an object file as TVM writes it: `__tvm_ffi_<symbol>` is the entry, and every object also carries
weak helpers (`__tvm_ffi_main`, `__extendhfsf2`, `__truncsfhf2`) and may call
`TVMFFIErrorSetRaisedFromCStrParts`, which stub.c provides. The library exports the entries and the pointer
`tilegraph_set_error_parts`, nothing else. The same objects give the same bytes: no paths, times or build ids.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilegraph.codegen import elf
from tilegraph.errors import EnvironmentProblem, InputError, InternalError

ENTRY_PREFIX = "__tvm_ffi_"
ERROR_POINTER = "tilegraph_set_error_parts"
STUB = Path(__file__).with_name("stub.c")

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Pointers that TVM's own loader would fill; ours has no such services, and a null one would be called.
_SLOT = re.compile(r"__TVM|__tvm_ffi__library_")


@dataclass(frozen=True)
class LibraryInfo:
    """What was linked: the file's SHA-256 in hexadecimal and its size in bytes."""

    sha256: str
    bytes: int


def find_compiler() -> list[str]:
    """The C compiler as a command: $CC (which may carry options), else cc, gcc or clang.

    Raises `EnvironmentProblem` if there is none.
    """
    wanted = os.environ.get("CC", "").strip()
    if wanted:
        command = shlex.split(wanted)
        if shutil.which(command[0]) is None:
            raise EnvironmentProblem(f"CC={wanted}: no such program; unset CC or name an installed C compiler")
        return command
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    raise EnvironmentProblem("no C compiler found (tried cc, gcc, clang), which linking the kernels needs; "
                             "install one (Debian: apt-get install gcc libc6-dev) or set CC")


def link(objects: Mapping[str, bytes], out: Path) -> LibraryInfo:
    """Links `objects` (symbol -> object file) into the shared library `out`, replacing it whole or not at all.

    Objects are linked in the order of their symbols, whatever the mapping's. No object at all is allowed.

    Raises `EnvironmentProblem` if there is no C compiler or it cannot link, `InputError` if `out` cannot be
    written, and `InternalError` if an object is not what this module's text says.
    """
    for symbol, data in objects.items():
        _check_object(symbol, data)
    compiler = find_compiler()
    symbols = sorted(objects)
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".link-") as name:
            work = Path(name)
            built = work / "library.so"
            _run(compiler, _arguments(work, symbols, objects, built), work)
            data = built.read_bytes()
            _check_library(data, symbols, compiler)
            built.chmod(0o644)
            os.replace(built, out)
    except OSError as error:
        raise InputError(f"cannot write the library {out}: {error.strerror or error}; "
                         "free some space or choose another place") from error
    return LibraryInfo(hashlib.sha256(data).hexdigest(), len(data))


def _check_object(symbol: str, data: bytes) -> None:
    if not _SYMBOL.fullmatch(symbol):
        raise InternalError(f"kernel symbol {symbol!r} is not a C name")
    try:
        table = elf.symbols(data)
    except ValueError as error:
        raise InternalError(f"kernel {symbol}: its object is unreadable ({error})") from error
    if not any(s.defined and s.name == ENTRY_PREFIX + symbol for s in table):
        raise InternalError(f"kernel {symbol}: its object does not define {ENTRY_PREFIX}{symbol}")
    slots = sorted({s.name for s in table if _SLOT.match(s.name)})
    if slots:
        raise InternalError(f"kernel {symbol} calls TVM's runtime ({', '.join(slots)}), which the serving side does "
                            "not have; allocate through the scratch argument and loop over [begin, end)")


def _arguments(work: Path, symbols: list[str], objects: Mapping[str, bytes], built: Path) -> list[str]:
    script = work / "exports.map"
    script.write_text(f"{{ global: {ERROR_POINTER}; {' '.join(f'{ENTRY_PREFIX}{s};' for s in symbols)} local: *; }};\n")
    files = []
    for index, symbol in enumerate(symbols):
        path = work / f"{index}.o"
        path.write_bytes(objects[symbol])
        files.append(str(path))
    # -nostartfiles: no constructors are needed, and crt files differ between compilers.
    # -z defs: a missing function is found here and not when the library is loaded.
    # -z noseparate-code: two mappings less and 8 KB less to check; loading a small library takes 27 instead of 35 µs.
    return ["-shared", "-fPIC", "-O2", "-ffreestanding", "-nostartfiles", "-static-libgcc", "-o", str(built), str(STUB),
            *files, f"-Wl,--version-script={script}", "-Wl,--build-id=none", "-Wl,-s", "-Wl,-z,defs",
            "-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,--hash-style=gnu", "-Wl,--as-needed", "-lm",
            "-Wl,-z,noseparate-code"]


def _run(compiler: list[str], arguments: list[str], work: Path) -> None:
    # A response file: a model may have more kernels than a command line can hold.
    response = work / "arguments"
    response.write_text("\n".join(_quote(arguments)))
    environment = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    done = subprocess.run([*compiler, f"@{response}"], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace", check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip() or f"exit status {done.returncode}"
    if "No space left on device" in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    name = shlex.join(compiler)
    missing = sorted(set(re.findall(r"undefined (?:reference to|symbol:?) [`']?([A-Za-z_0-9]+)", said)))
    if missing:
        raise InternalError(f"the kernels call functions that libc and libm do not have: {', '.join(missing)}")
    line = next((x for x in said.splitlines() if "error" in x or "cannot find" in x), said.splitlines()[0])
    hint = " (Debian: apt-get install libc6-dev)" if "cannot find" in line else ""
    raise EnvironmentProblem(f"the C compiler {name} could not link the kernels: {line}; "
                             f"install a working one{hint} or set CC")


def _quote(arguments: Iterable[str]) -> list[str]:
    """Arguments as gcc and clang read them from a response file."""
    return ['"' + a.replace("\\", "\\\\").replace('"', '\\"') + '"' for a in arguments]


def _check_library(data: bytes, symbols: list[str], compiler: list[str]) -> None:
    """The linker did what it was told: exactly the exports, and no library but the C ones."""
    exported = {s.name for s in elf.symbols(data, dynamic=True) if s.defined}
    wanted = {ERROR_POINTER, *(ENTRY_PREFIX + s for s in symbols)}
    if exported != wanted:
        odd = ", ".join(sorted(exported ^ wanted)[:5])
        raise EnvironmentProblem(f"the linker of {shlex.join(compiler)} exports the wrong symbols ({odd}); "
                                 "use GNU ld or lld, or set CC to another compiler")
    foreign = [n for n in elf.needed(data) if not re.match(r"(libc|libm|ld-linux|libc\.musl)\b", n)]
    if foreign:
        raise EnvironmentProblem(f"{shlex.join(compiler)} linked the kernels against {', '.join(foreign)}; only the C "
                                 "library is allowed, so set CC to a plain C compiler")
