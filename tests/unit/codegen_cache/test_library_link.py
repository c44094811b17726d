"""Linking: objects made with the C compiler stand for TVM's (tests/numeric has real ones)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from tilegraph.codegen import elf, library
from tilegraph.codegen.library import find_compiler, link
from tilegraph.errors import EnvironmentProblem, InputError, InternalError

KERNEL = """
extern void TVMFFIErrorSetRaisedFromCStrParts(const char*, const char**, int);
extern double sin(double);
__attribute__((weak)) float __extendhfsf2(unsigned short x) { return x; }
static double state = 1;
int __tvm_ffi_NAME(void* self, const void* args, int n, void* ret) {
  const char* parts[] = {"NAME: ", "bad"};
  if (n < 0) { TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 2); return -1; }
  return n + VALUE + (int)(0 * sin(state) + 0 * __extendhfsf2(1));
}
__attribute__((weak)) int __tvm_ffi_main(void* self, const void* args, int n, void* ret) {
  return __tvm_ffi_NAME(self, args, n, ret);
}
"""


def compiled(folder: Path, text: str) -> bytes:
    source = folder / "source.c"
    source.write_text(text)
    out = folder / "source.o"
    subprocess.run([*find_compiler(), "-c", "-g", "-fPIC", "-fno-builtin", "-O1", "-o", str(out), str(source)],
                   check=True)
    return out.read_bytes()


def kernel(folder: Path, name: str, value: int) -> bytes:
    return compiled(folder, KERNEL.replace("NAME", name).replace("VALUE", str(value)))


def test_entries_run_and_nothing_else_is_exported(tmp_path: Path) -> None:
    objects = {f"tg_{n}": kernel(tmp_path, f"tg_{n}", n) for n in range(3)}
    out = tmp_path / "kernels.cpu.so"
    info = link(objects, out)
    data = out.read_bytes()
    assert (info.bytes, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    names = {s.name for s in elf.symbols(data, dynamic=True) if s.defined}
    assert names == {"__tvm_ffi_tg_0", "__tvm_ffi_tg_1", "__tvm_ffi_tg_2", "tilegraph_set_error_parts"}
    assert all(n.startswith(("libc.", "libm.")) for n in elf.needed(data))
    loaded = ctypes.CDLL(str(out), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    assert [loaded[f"__tvm_ffi_tg_{n}"](None, None, 10, None) for n in range(3)] == [10, 11, 12]


def test_errors_go_to_the_pointer_once_it_is_filled(tmp_path: Path) -> None:
    link({"tg_a": kernel(tmp_path, "tg_a", 1)}, tmp_path / "a.so")
    loaded = ctypes.CDLL(str(tmp_path / "a.so"))
    assert loaded.__getitem__("__tvm_ffi_tg_a")(None, None, -1, None) == -1  # a null pointer: dropped
    said: list[tuple[bytes, bytes]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int32)
    report = kind(lambda name, parts, n: said.append((name, b"".join(parts[i] or b"" for i in range(n)))))
    ctypes.c_void_p.in_dll(loaded, "tilegraph_set_error_parts").value = ctypes.cast(report, ctypes.c_void_p).value
    assert loaded.__getitem__("__tvm_ffi_tg_a")(None, None, -1, None) == -1
    assert said == [(b"ValueError", b"tg_a: bad")]


def test_the_same_objects_give_the_same_bytes(tmp_path: Path) -> None:
    objects = {f"tg_{n}": kernel(tmp_path, f"tg_{n}", n) for n in range(3)}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = link(objects, tmp_path / "one" / "a.so")
    second = link(dict(reversed(objects.items())), tmp_path / "two" / "b.so")
    assert first == second
    assert (tmp_path / "one" / "a.so").read_bytes() == (tmp_path / "two" / "b.so").read_bytes()
    assert str(tmp_path).encode() not in (tmp_path / "one" / "a.so").read_bytes()
    assert [p.name for p in (tmp_path / "one").iterdir()] == ["a.so"]


def test_no_kernels_at_all(tmp_path: Path) -> None:
    link({}, tmp_path / "empty.so")
    exported = {s.name for s in elf.symbols((tmp_path / "empty.so").read_bytes(), dynamic=True) if s.defined}
    assert exported == {"tilegraph_set_error_parts"}


def test_objects_that_are_not_kernels(tmp_path: Path) -> None:
    good = kernel(tmp_path, "tg_a", 1)
    slot = compiled(tmp_path, "void* __TVMBackendAllocWorkspace; int __tvm_ffi_tg_a(void) "
                              "{ return __TVMBackendAllocWorkspace != 0; }")
    wants = compiled(tmp_path, "int elsewhere(void); int __tvm_ffi_tg_a(void) { return elsewhere(); }")
    for objects, said in [({"tg_b": good}, "does not define __tvm_ffi_tg_b"),
                          ({"tg_a": good[:-100]}, "unreadable"),
                          ({"tg_a": b"not ELF"}, "unreadable"),
                          ({"tg;a": good}, "not a C name"),
                          ({"tg_a": slot}, "__TVMBackendAllocWorkspace"),
                          ({"tg_a": wants}, "do not have: elsewhere")]:
        with pytest.raises(InternalError, match=said):
            link(objects, tmp_path / "a.so")
        assert not (tmp_path / "a.so").exists()


def test_no_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="apt-get install gcc"):
        link({}, tmp_path / "a.so")
    monkeypatch.setenv("CC", "mycc -O1")
    with pytest.raises(EnvironmentProblem, match="CC=mycc -O1"):
        link({}, tmp_path / "a.so")


def test_a_broken_compiler_is_the_machines_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "fakecc"
    fake.write_text("#!/bin/sh\necho 'ld: error: cannot find -lm' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(EnvironmentProblem, match="libc6-dev"):
        link({}, tmp_path / "a.so")
    fake.write_text("#!/bin/sh\necho 'write: No space left on device' >&2\nexit 1\n")
    with pytest.raises(InputError, match="free some space"):
        link({}, tmp_path / "a.so")
    assert [p.name for p in tmp_path.iterdir()] == ["fakecc"]


def test_a_linker_that_ignores_the_export_list_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_compiler()[0]
    objects = {"tg_a": kernel(tmp_path, "tg_a", 1)}
    fake = tmp_path / "fakecc"
    fake.write_text(f"#!/bin/sh\nfile=${{1#@}}\ngrep -v version-script $file > $file.new\nexec {real} @$file.new\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(EnvironmentProblem, match=r"exports the wrong symbols.*__tvm_ffi_main"):
        link(objects, tmp_path / "a.so")


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write the library"):
        link({}, tmp_path / "missing" / "a.so")


def test_many_objects_and_odd_paths(tmp_path: Path) -> None:
    odd = tmp_path / 'a "quoted" \\ folder'
    odd.mkdir()
    template = "tg_" + "x" * 100  # exchanged in the bytes of one object: 300 compilations would be slow
    data = compiled(tmp_path, f"int __tvm_ffi_{template}(void) {{ return 1; }}")
    names = [f"tg_{n:0100d}" for n in range(300)]
    objects = {name: data.replace(template.encode(), name.encode()) for name in names}
    link(objects, odd / "a.so")
    assert len([s for s in elf.symbols((odd / "a.so").read_bytes(), dynamic=True) if s.defined]) == 301


def test_the_stub_is_beside_its_module() -> None:
    assert library.STUB.is_file()
