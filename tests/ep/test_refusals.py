"""What is refused when a model is loaded: each message names the object, the reason and the fix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnxruntime as ort
import pytest

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


@pytest.mark.parametrize(("options", "match"), [
    ({"max_tasks": 0}, "max_tasks.*'0'.*1 to 4096"), ({"max_tasks": 4097}, "max_tasks.*'4097'"),
    ({"max_tasks": "2x"}, "max_tasks.*'2x'"), ({"loader": "disk"}, "loader.*auto, place, memfd or file"),
    ({"colour": "red"}, "unknown option 'colour'.*max_tasks, copied_weights_mb, loader and expect_sha256")])
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
