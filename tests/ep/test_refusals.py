"""What is refused when a model is loaded: each message names the object, the reason and the fix."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tilegraph.runtime as runtime
from tilegraph.spec.artifact import EP_NAME

Serve = Callable[..., Any]
State = ort.capi.onnxruntime_pybind11_state


@pytest.fixture
def folder(tmp_path: Path, add_one: Path) -> Path:
    """A good folder to damage; what it holds is checked by `test_the_folder_is_good`."""
    ep.Artifact(add_one, {"p": ep.add_one_program("n")}).write(tmp_path / "m")
    return tmp_path / "m"


def refuse(folder: Path, match: str, error: type[Exception] = State.InvalidGraph) -> None:
    with pytest.raises(error, match=match):
        runtime.session(folder)


def test_the_folder_is_good(folder: Path) -> None:
    np.testing.assert_array_equal(runtime.session(folder).run(None, {"x": np.zeros(3, np.float32)})[0], np.ones(3))


def test_it_can_be_moved(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    runtime.session(moved).run(None, {"x": np.zeros(3, np.float32)})


def test_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    session = runtime.session("model.onnx")
    monkeypatch.chdir("/")
    session.run(None, {"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize(("name", "what"), [("kernels.cpu.so", "compiled library"), ("manifest.json", "manifest")])
def test_a_missing_file(folder: Path, name: str, what: str) -> None:
    (folder / name).unlink()
    refuse(folder, f"node_p.*{what} '.*/{name}' cannot be opened .No such file.*copy it again", State.NoSuchFile)


@pytest.mark.parametrize("name", ["kernels.cpu.so", "manifest.json"])
def test_a_folder_in_place_of_a_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refuse(folder, f"{name}' is not a regular file")


@pytest.mark.parametrize("name", ["kernels.cpu.so", "manifest.json"])
def test_a_pipe_does_not_hang(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refuse(folder, f"{name}' is not a regular file")


@pytest.mark.parametrize("name", ["kernels.cpu.so", "manifest.json"])
def test_a_flipped_bit(folder: Path, name: str) -> None:
    """At places all over the file, among them its first and last byte."""
    path = folder / name
    good = path.read_bytes()
    for at in {0, len(good) - 1, *np.random.default_rng(0).integers(0, len(good), 10).tolist()}:
        damaged = bytearray(good)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        refuse(folder, f"{name}' was changed or damaged: its SHA-256 is")
    path.write_bytes(good)
    runtime.session(folder)


@pytest.mark.parametrize("name", ["kernels.cpu.so", "manifest.json"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_truncated_file(folder: Path, name: str, size: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:size])
    refuse(folder, f"{name}' was changed or damaged")


@pytest.mark.parametrize("path", ["/etc/passwd", "../kernels.cpu.so", "a/../../b.so", "..", "", "a/.."])
@pytest.mark.parametrize("which", ["library", "manifest"])
def test_a_path_that_escapes(serve: Serve, add_one: Path, path: str, which: str) -> None:
    if which == "library":
        attributes = {"ep_cache_context": path}
        what = "ep_cache_context"
    else:
        attributes = {"notes": json.dumps({"manifest": path, "manifest_sha256": "0", "library_sha256": "0"})}
        what = "manifest of its notes" if path else "notes name no manifest"
    node = ep.Node("p", attributes=attributes)
    with pytest.raises(State.InvalidGraph, match=f"node_p.*{what}.*run tilegraph optimize again"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[node]))


def test_a_file_name_with_two_dots_is_fine(folder: Path, add_one: Path) -> None:
    node = ep.Node("p", attributes={"ep_cache_context": "sub/k..so"})
    artifact = ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[node])
    artifact.write(folder)
    (folder / "sub").mkdir()
    (folder / "kernels.cpu.so").rename(folder / "sub" / "k..so")
    runtime.session(folder)


def test_an_unknown_partition(serve: Serve, add_one: Path) -> None:
    with pytest.raises(State.InvalidGraph, match=r"partition 'other' is not in manifest '.*run tilegraph"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[ep.Node("other")]))


def test_a_missing_symbol(serve: Serve, add_one: Path) -> None:
    spec = ep.program([ep.tensor("x", "float", 3)], [ep.tensor("y", "float", 3)],
                      [ep.call("absent", [ep.source(0), ep.result(0)], [3], 3)])
    with pytest.raises(State.InvalidGraph, match=r"node_p.*the compiled library has no kernel 'absent'"):
        serve(ep.Artifact(add_one, {"p": spec}))


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


@pytest.mark.parametrize(("options", "match"), [
    ({"max_tasks": 0}, "max_tasks.*'0'.*1 to 4096"), ({"max_tasks": 4097}, "max_tasks.*'4097'"),
    ({"max_tasks": "2x"}, "max_tasks.*'2x'"), ({"loader": "disk"}, "loader.*auto, memfd or file"),
    ({"colour": "red"}, "unknown option 'colour'.*max_tasks and loader")])
def test_a_bad_option(serve: Serve, add_one: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(State.InvalidArgument, match=match):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}), options=options)


def test_a_node_of_another_provider_is_not_claimed(serve: Serve, add_one: Path) -> None:
    for other in ("SomeOtherExecutionProvider", EP_NAME + "X", EP_NAME[:-1], "x" * 500):
        node = ep.Node("p", attributes={"source": other})
        with pytest.raises(Exception, match=r"not compatible|NOT_IMPLEMENTED|NotImplemented|Failed to find kernel"):
            serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[node]))


@pytest.mark.parametrize("count", [0, 2])
def test_a_node_with_another_number_of_inputs(serve: Serve, add_one: Path, count: int) -> None:
    spec = ep.add_one_program(3)
    inputs = tuple(ep.tensor(f"x{i}", "float", 3) for i in range(count))
    wrong = ep.program(inputs, spec.outputs, [])
    artifact = ep.Artifact(add_one, {"p": spec, "q": wrong}, nodes=[ep.Node("p")])
    artifact.edit_manifest = lambda data: data["partitions"].__setitem__("p", data["partitions"]["q"])
    with pytest.raises(State.InvalidGraph, match=f"has 1 inputs and 1 outputs, compiled with {count} and 1"):
        serve(artifact)


@pytest.mark.parametrize("notes", ["", "{", "[]", "{}", '{"library_sha256": 1}', '{"library_sha256": "a"}', "nul\0l",
                                   "[" * 5000])
def test_bad_notes(serve: Serve, add_one: Path, notes: str) -> None:
    with pytest.raises(State.InvalidGraph, match=r"node_p.*notes.*run tilegraph optimize again"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[ep.Node("p", attributes={"notes": notes})]))


# -- malformed manifests ----------------------------------------------------------------------------------------

def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Replaces (or with ...: removes) the manifest's field at `path`."""
    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        if value is ...:
            del data[path[-1]]
        else:
            data[path[-1]] = value
    return edit


P = ("partitions", "p")
CALL = (*P, "calls", 0)
DEEP: Any = "n"
for _ in range(40):
    DEEP = ["+", DEEP, 1]
MALFORMED = {
    "format": (at("format", value=2), "format 2 is not the one this runtime reads"),
    "abi": (at("abi", value=7), "kernel ABI 7"),
    "no format": (at("format", value=...), "no field 'format'"),
    "format text": (at("format", value="1"), "format: it must be an integer"),
    "no library": (at("library", value=...), "no field 'library'"),
    "library list": (at("library", value=[]), "library: it must be an object"),
    "features": (at("library", "features", value="avx2"), "features: it must be a list"),
    "feature": (at("library", "features", value=[1]), r"features\[0\]: it must be a string"),
    "another library": (at("library", "sha256", value="0" * 64), "not the one that its manifest describes"),
    "bytes": (at("library", "bytes", value=5), "not the one that its manifest describes"),
    "negative bytes": (at("library", "bytes", value=-1), "library.bytes: it is -1"),
    "partitions": (at("partitions", value=[]), "partitions: it must be an object"),
    "partition": (at(*P, value=[1]), "partition 'p': it must be an object"),
    "no calls": (at(*P, "calls", value=...), "no field 'calls'"),
    "dtype": (at(*P, "inputs", 0, "dtype", value="quaternion"), r"inputs\[0\].dtype: unknown element type 'quat"),
    "string dtype": (at(*P, "inputs", 0, "dtype", value="string"), "unknown element type 'string'"),
    "rank": (at(*P, "inputs", 0, "shape", value=[1] * 17), "17 entries, more than 16"),
    "negative dim": (at(*P, "inputs", 0, "shape", value=[-1]), "it is -1, and cannot be negative"),
    "dim float": (at(*P, "inputs", 0, "shape", value=[1.5]), "it must be an integer"),
    "dim too big": (at(*P, "inputs", 0, "shape", value=[2**64 - 1]), "does not fit 64 bits"),
    "dim bool": (at(*P, "inputs", 0, "shape", value=[True]), "it must be a list"),
    "dim null": (at(*P, "inputs", 0, "shape", value=[None]), "it must be a list"),
    "empty symbol": (at(*P, "inputs", 0, "shape", value=[""]), "needs a name"),
    "unbound symbol": (at(*P, "outputs", 0, "shape", value=["m"]), "the symbol 'm' is not a dim of any input"),
    "operation": (at(*P, "outputs", 0, "shape", value=[["^", "n", 2]]), "unknown operation"),
    "no operands": (at(*P, "outputs", 0, "shape", value=[["+"]]), "needs operands"),
    "three operands": (at(*P, "outputs", 0, "shape", value=[["//", "n", 2, 3]]), "'//' needs two operands"),
    "division by zero": (at(*P, "outputs", 0, "shape", value=[["//", 4, 0]]), "divides by zero"),
    "overflow": (at(*P, "outputs", 0, "shape", value=[["*", 2**62, 4]]), "overflows 64 bits"),
    "deep": (at(*P, "outputs", 0, "shape", value=[DEEP]), "nested deeper than"),
    "constant": (at(*P, "inputs", 0, "constant", value=0), "constant: it must be true or false"),
    "slot": (at(*CALL, "args", 0, value="input"), r"args\[0\]: it must be a list"),
    "slot kind": (at(*CALL, "args", 0, value=["stack", 0]), "unknown slot kind 'stack'"),
    "slot size": (at(*CALL, "args", 0, value=["input"]), "a slot is a kind and a place"),
    "input index": (at(*CALL, "args", 0, value=["input", 1]), r"args\[0\]\[1\]: it is 1, outside 0 to 0"),
    "negative index": (at(*CALL, "args", 0, value=["output", -1]), "it is -1, outside 0 to 0"),
    "symbolic index": (at(*CALL, "args", 0, value=["output", "n"]), "it must be an integer"),
    "arena offset": (at(*CALL, "args", 0, value=["arena", -64]), "it is -64, and cannot be negative"),
    "many arguments": (at(*CALL, "args", value=[["input", 0]] * 4097), "4097 entries, more than 4096"),
    "many sizes": (at(*CALL, "sizes", value=[1] * 4097), "4097 entries, more than 4096"),
    "negative size": (at(*CALL, "sizes", value=[-5]), "it is -5, and cannot be negative"),
    "extent": (at(*CALL, "extent", value=-1), "it is -1, and cannot be negative"),
    "scratch": (at(*CALL, "scratch", value=-1), "it is -1, and cannot be negative"),
    "grain": (at(*CALL, "grain", value=None), "grain: it must be a list"),
    "align": (at(*CALL, "align", value=0), "align: it is 0, outside 1"),
    "align symbol": (at(*CALL, "align", value="n"), "align: it must be an integer"),
    "symbol": (at(*CALL, "symbol", value=""), "symbol: it is not a symbol"),
    "symbol with a zero": (at(*CALL, "symbol", value="add_one\0x"), "symbol: it is not a symbol"),
    "arena bytes": (at(*P, "arena", "bytes", value=-1), "arena.bytes: it is -1"),
    "arena alignment": (at(*P, "arena", "alignment", value=4096), "only an arena alignment of 64"),
}


@pytest.mark.parametrize("embed", [False, True])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_manifest(serve: Serve, add_one: Path, name: str, embed: bool) -> None:
    edit, match = MALFORMED[name]
    with pytest.raises(State.InvalidGraph, match=match) as error:
        serve(ep.Artifact(add_one, {"p": ep.add_one_program("n")}, edit_manifest=edit, embed=embed))
    assert "run tilegraph optimize again" in str(error.value) or "use the tilegraph version" in str(error.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2**70, 2**70) | st.floats()
    | st.sampled_from(["", "n", "m", "input", "arena", "+", "//"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["shape", "bytes", "x"]), inner, max_size=3),
    max_leaves=8)


def paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else []
    return [p for k, v in items for p in ((*prefix, k), *paths(v, (*prefix, k)))]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_manifest_with_any_value_anywhere(add_one: Path, tmp_path_factory: pytest.TempPathFactory,
                                            data: st.DataObject) -> None:
    """It is refused with a reason, or it serves: nothing else, and never a crash."""
    def edit(manifest: dict[str, Any]) -> None:
        path = data.draw(st.sampled_from(paths(manifest)))
        at(*path, value=data.draw(JSON_VALUES))(manifest)

    artifact = ep.Artifact(add_one, {"p": ep.add_one_program("n")}, edit_manifest=edit)
    path = artifact.write(tmp_path_factory.mktemp("fuzz"))
    reason = "node_p or the manifest serves"
    try:
        runtime.session(path).run(None, {"x": np.zeros(2, np.float32)})
    except (State.InvalidGraph, State.NotImplemented, State.InvalidArgument, State.RuntimeException) as error:
        reason = str(error)
    assert any(name in reason for name in ("node_p", "manifest", "kernels.cpu.so"))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
@example("[" * 100000)
@example('{"a":' * 100)
@example("\ufeff{}")
@example('"\\')
def test_a_manifest_of_any_text(add_one: Path, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    raw = text.encode("utf-8", "surrogatepass")
    image = hashlib.sha256(add_one.read_bytes()).hexdigest()
    notes = json.dumps({"manifest": "manifest.json", "manifest_sha256": hashlib.sha256(raw).hexdigest(),
                        "library_sha256": image})
    ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[ep.Node("p", attributes={"notes": notes})]).write(folder)
    (folder / "manifest.json").write_bytes(raw)
    refuse(folder, "manifest.json': it ")


def test_a_large_program(serve: Serve, add_one: Path) -> None:
    """Thousands of calls are ordinary: a partition is as large as possible."""
    steps = 5000
    calls = [ep.call("add_one", [ep.source(0), ep.arena(0)], [4], 4),
             *[ep.call("add_one", [ep.arena(0), ep.arena(0)], [4], 4) for _ in range(steps)],
             ep.call("add_one", [ep.arena(0), ep.result(0)], [4], 4)]
    spec = ep.program([ep.tensor("x", "float", 4)], [ep.tensor("y", "float", 4)], calls, arena_bytes=16)
    session = serve(ep.Artifact(add_one, {"p": spec}))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(4, np.float32)})[0], np.full(4, steps + 2))


def test_no_descriptor_is_leaked(folder: Path, add_one: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    runtime.session(folder)
    before = count()
    for _ in range(5):
        runtime.session(folder)
    (folder / "kernels.cpu.so").write_bytes(b"x")
    for _ in range(5):
        refuse(folder, "changed or damaged")
    assert count() <= before


def test_the_plugin_exports_its_two_functions_only() -> None:
    command = ["nm", "-D", "--defined-only", str(runtime.ep_library_path())]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    assert names == {"CreateEpFactories", "ReleaseEpFactory"}
