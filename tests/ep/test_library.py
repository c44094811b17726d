"""The compiled library: for which CPUs it is loaded, what it may need, how it gets into the process."""

from __future__ import annotations

import platform
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnxruntime as ort
import pytest

import tilegraph.runtime as runtime

Serve = Callable[..., Any]
State = ort.capi.onnxruntime_pybind11_state


@pytest.mark.parametrize("isa", ["sparc", "armv8-a" if platform.machine() == "x86_64" else "x86-64-v3", ""])
def test_another_architecture(serve: Serve, add_one: Path, isa: str) -> None:
    with pytest.raises(State.NotImplemented, match=rf"compiled for '{isa}', which is not an architecture.*--mcpu"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, isa=isa))


def test_an_unknown_feature(serve: Serve, add_one: Path) -> None:
    with pytest.raises(State.NotImplemented, match="features that this runtime does not know: branchfusion"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, features=("branchfusion",)))


def cpu_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next(line for line in lines if line.startswith("flags")).split(":")[1].split())


# Linux's name for each feature, where it differs from LLVM's
LINUX = {"avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni",
         "avx512vbmi2": "avx512_vbmi2", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
         "amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16", "amx-fp16": "amx_fp16",
         "bmi": "bmi1", "lzcnt": "abm", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2"}
FEATURES = ["sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "lzcnt", "bmi", "bmi2", "f16c", "avx", "avx2", "fma", "gfni",
            "vaes", "vpclmulqdq", "avxvnni", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma",
            "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16", "avx512fp16",
            "amx-tile", "amx-int8", "amx-bf16", "amx-fp16"]


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_checked_against_this_cpu(serve: Serve, add_one: Path, feature: str) -> None:
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program(3)}, features=(feature,))
    if LINUX.get(feature, feature) in cpu_flags():
        serve(artifact)
    else:
        with pytest.raises(State.NotImplemented, match=f"features that this one lacks: {feature};"):
            serve(artifact)


@pytest.mark.parametrize(("level", "needs"), [("x86-64", "sse2"), ("x86-64-v2", "sse4_2"), ("x86-64-v3", "avx2"),
                                              ("x86-64-v4", "avx512vl")])
def test_every_level_is_checked_against_this_cpu(serve: Serve, add_one: Path, level: str, needs: str) -> None:
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program(3)}, isa=level)
    if needs in cpu_flags():
        serve(artifact)
    else:
        with pytest.raises(State.NotImplemented, match=f"lacks: {level}"):
            serve(artifact)


@pytest.mark.parametrize("slot", ["__TVMBackendParallelLaunch", "__TVMFFIFunctionCall", "__TVMBackendAllocWorkspace",
                                  "__tvm_ffi__library_bin", "__TVMFFIEnvModLookupFromImports"])
def test_a_library_that_wants_tvm(serve: Serve, compile_kernels: Callable[..., Path], slot: str) -> None:
    library = compile_kernels(ep.ADD_ONE + f"EXPORT void* {slot};\n")
    with pytest.raises(State.InvalidGraph, match=f"needs the TVM runtime .symbol {slot}.*run tilegraph optimize again"):
        serve(ep.Artifact(library, {"p": ep.add_one_program(3)}))


def test_a_library_that_calls_tvm(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    library = compile_kernels(ep.ADD_ONE + "void TVMFFIErrorSetRaisedFromCStrParts(void);\n"
                              "KERNEL(other) { TVMFFIErrorSetRaisedFromCStrParts(); return 0; }\n")
    with pytest.raises(State.InvalidGraph, match="symbol TVMFFIErrorSetRaisedFromCStrParts"):
        serve(ep.Artifact(library, {"p": ep.add_one_program(3)}))


def test_a_library_with_another_missing_symbol(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    library = compile_kernels(ep.ADD_ONE + "void nowhere(void);\nKERNEL(other) { nowhere(); return 0; }\n")
    with pytest.raises(State.Fail, match=r"cannot be loaded:.*undefined symbol: nowhere"):
        serve(ep.Artifact(library, {"p": ep.add_one_program(3)}))


@pytest.mark.parametrize("content", [b"", b"not a library at all" * 10, b"\x7fELF" + bytes(200)])
def test_a_file_that_is_no_library(serve: Serve, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "k.so"
    path.write_bytes(content)
    with pytest.raises(State.InvalidGraph, match=r"kernels\.cpu\.so' cannot be served: it "):
        serve(ep.Artifact(path, {"p": ep.add_one_program(3)}))


def test_a_library_with_damaged_headers_and_a_right_hash(serve: Serve, tmp_path: Path, add_one: Path) -> None:
    """The header check itself never reads outside the file. The dynamic linker is not reached: no section is usable."""
    good = add_one.read_bytes()
    table, end = 0x28, len(good) - 1
    for at, value in ((table, b"\xff" * 8), (table, end.to_bytes(8, "little")), (0x3c, b"\0\0"),
                      (0x12, b"\xb7\0"), (0x10, b"\x02\0"), (4, b"\x01")):
        path = tmp_path / "k.so"
        path.write_bytes(good[:at] + value + good[at + len(value):])
        with pytest.raises(State.InvalidGraph, match="cannot be served: it "):
            serve(ep.Artifact(path, {"p": ep.add_one_program(3)}))


@pytest.mark.parametrize("loader", ["auto", "memfd", "file"])
def test_each_way_to_load(serve: Serve, compile_kernels: Callable[..., Path], loader: str, tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    library = compile_kernels(ep.ADD_ONE + f"/* {loader} */ EXPORT int only_{loader};")  # a new one
    session = serve(ep.Artifact(library, {"p": ep.add_one_program(3)}), options={"loader": loader})
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(3, np.float32)})[0], np.ones(3))
    maps = Path("/proc/self/maps").read_text()
    assert ("tilegraph-kernels" in maps if loader != "file" else str(tmp_path) + "/tilegraph-" in maps)
    assert not list(tmp_path.glob("tilegraph-*"))  # nothing is left behind


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("tilegraph-kernels")


def test_plain_libraries_are_placed_in_memory(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """Without the dynamic linker: pointers into itself and libc's functions are linked, its zeros are zeros."""
    library = compile_kernels(r"""
void* memset(void*, int, unsigned long);
EXPORT float first_value, second_value = 2, *const values[2] = {&first_value, &second_value};
KERNEL(fill) {
  int bad_tag = 0;
  float* y = POINTER(float, 1);
  CHECK_TAGS(5);
  volatile unsigned long bytes = 4 * sizeof(float);
  memset(y, 0, bytes);
  y[1] = *values[0]++ + ++*values[1];
  return 0;
}""".replace("*values[0]++", "(*values[0])++"), "-nostartfiles")
    spec = ep.program([ep.tensor("x", "float", 1)], [ep.tensor("y", "float", 4)],
                      [ep.call("fill", [ep.source(0), ep.result(0)], [], 1)])
    feed = {"x": np.zeros(1, np.float32)}
    before = _mapped()
    for loader in ("place", "auto"):
        session = serve(ep.Artifact(library, {"p": spec}), options={"loader": loader})
        assert _mapped() == before
        for wanted in (3, 5):
            np.testing.assert_array_equal(session.run(None, feed)[0], np.array([0, wanted, 0, 0], np.float32))
        del session  # the next one starts again


@pytest.mark.parametrize(("more", "why"), [
    ("EXPORT int begun; __attribute__((constructor)) static void start(void) { begun = 1; }",
     "an entry [0-9]+ that is the dynamic linker's"),
    ("EXPORT __thread int mine;", "thread-local variables"),
    ("EXPORT int strcmp(const char*, const char*); EXPORT int (*other)(const char*, const char*) = strcmp;",
     "the symbol 'strcmp'"),
    ("static int one(void) { return 1; } static void* pick(void) { return one; }\n"
     "EXPORT int chosen(void) __attribute__((ifunc(\"pick\")));", "symbol 'chosen' is of a kind")])
def test_what_only_the_dynamic_linker_does(serve: Serve, compile_kernels: Callable[..., Path], more: str,
                                           why: str) -> None:
    artifact = ep.Artifact(compile_kernels(ep.ADD_ONE + more, "-nostartfiles"), {"p": ep.add_one_program(3)})
    with pytest.raises(State.Fail, match=f"cannot be loaded: by its own means: .*{why}"):
        serve(artifact, options={"loader": "place"})
    before = _mapped()
    session = serve(artifact)
    assert _mapped() > before
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(3, np.float32)})[0], np.ones(3))


def test_damaged_tables_never_reach_outside(serve: Serve, compile_kernels: Callable[..., Path], tmp_path: Path) -> None:
    """With a right hash: 8 bytes of the segments' headers, the linker's table or a relocation are a large number."""
    good = compile_kernels(ep.ADD_ONE + "EXPORT int here, *there = &here;", "-nostartfiles").read_bytes()
    places: list[int] = []
    for at in range(64, 64 + 56 * good[56], 56):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", good, at)
        if kind in (1, 2):  # PT_LOAD, PT_DYNAMIC
            places += range(at + 8, at + 48, 8)
        if kind == 2:
            table = dict(struct.iter_unpack("<QQ", good[offset:offset + size]))
            places += [*range(offset + 8, offset + 16 * len(table), 16), *range(table[7], table[7] + table[8], 8)]
    path, refused = tmp_path / "k.so", 0
    for at in places:
        path.write_bytes(good[:at] + (0x7fffffff0000).to_bytes(8, "little") + good[at + 8:])
        try:
            serve(ep.Artifact(path, {"p": ep.add_one_program(3)}), options={"loader": "place"})
        except (State.Fail, State.InvalidGraph):
            refused += 1
    assert refused > len(places) / 3


def test_one_library_for_many_sessions(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """Loaded once, and closed with the last session: a static counter starts again."""
    library = compile_kernels(r"""
static float counter;
KERNEL(count) {
  int bad_tag = 0;
  float* y = POINTER(float, 1);
  CHECK_TAGS(5);
  *y = ++counter;
  return 0;
}""")
    spec = ep.program([ep.tensor("x", "float", 1)], [ep.tensor("y", "float", 1)],
                      [ep.call("count", [ep.source(0), ep.result(0)], [], 1)])
    feed = {"x": np.zeros(1, np.float32)}
    artifact = ep.Artifact(library, {"p": spec})
    first, second = serve(artifact), serve(artifact)
    assert [first.run(None, feed)[0][0], second.run(None, feed)[0][0]] == [1, 2]
    del first
    assert second.run(None, feed)[0][0] == 3
    del second
    assert serve(artifact).run(None, feed)[0][0] == 1


def test_libraries_come_and_go(serve: Serve, compile_kernels: Callable[..., Path]) -> None:
    """Descriptor numbers are used again; each session must still get its own library."""
    for round_ in range(3):
        for value in (10, 20, 30):
            library = compile_kernels(r"""
KERNEL(put) { int bad_tag = 0; float* y = POINTER(float, 1); CHECK_TAGS(5); *y = VALUE; return 0; }
""".replace("VALUE", str(value)))
            spec = ep.program([ep.tensor("x", "float", 1)], [ep.tensor("y", "float", 1)],
                              [ep.call("put", [ep.source(0), ep.result(0)], [], 1)])
            loader = "file" if round_ == 2 else "memfd"
            session = serve(ep.Artifact(library, {"p": spec}), options={"loader": loader})
            assert session.run(None, {"x": np.zeros(1, np.float32)})[0][0] == value
            del session


def test_the_plugin_exports_its_two_functions_only() -> None:
    command = ["nm", "-D", "--defined-only", str(runtime.ep_library_path())]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert names == {"CreateEpFactories", "ReleaseEpFactory"}
