"""The folder: what is in it, that it appears whole or not at all, and what it never overwrites."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from emit_models import LIBRARY, chain, chain_partitions, library_file, loaded, manifest, named, partition, values
from onnx import TensorProto, helper, numpy_helper

from tilegraph import io
from tilegraph.emit import emit, read_folder, staging, write_folder
from tilegraph.errors import InputError, InternalError, UsageError
from tilegraph.spec.artifact import Manifest
from tilegraph.spec.digest import sha256_file


@pytest.fixture
def emitted(tmp_path: Path) -> tuple[ir.Model, Manifest, Path]:
    model = chain()
    parts = chain_partitions(model)
    emit(model, parts)
    return model, manifest(parts), library_file(tmp_path)


def listing(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith(".")]


def test_what_is_in_the_folder(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    out = tmp_path / "m.tilegraph"
    assert write_folder(out, *emitted) == out
    found = listing(out)
    assert set(found) == {"model.onnx", "model.onnx.data", "kernels.cpu.so", "manifest.json", "report.json"}
    assert found["kernels.cpu.so"] == LIBRARY
    assert read_folder(out) == emitted[1]
    proto = onnx.load(out / "model.onnx", load_external_data=False)
    onnx.checker.check_model(out / "model.onnx")
    for node, name in zip((proto.graph.node[0], proto.graph.node[2]), ("p0", "p1"), strict=True):
        said = attributes(node)
        assert said.pop("notes") == json.dumps({
            "manifest": "manifest.json", "manifest_sha256": hashlib.sha256(found["manifest.json"]).hexdigest(),
            "library_sha256": hashlib.sha256(LIBRARY).hexdigest()}).encode()
        assert said == {"source": b"TileGraphExecutionProvider", "partition_name": name.encode(), "main_context": 1,
                        "embed_mode": 0, "ep_cache_context": b"kernels.cpu.so",
                        "hardware_architecture": b"x86-64-v4+avx512bf16", "ep_sdk_version": b"0.1.0"}
    big = next(t for t in proto.graph.initializer if t.name == "big")
    assert int({e.key: e.value for e in big.external_data}["offset"]) % 64 == 0
    assert leftovers(tmp_path) == []
    assert (out.stat().st_mode & 0o777) == 0o777 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_weights_are_the_original_ones(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    write_folder(tmp_path / "out", *emitted)
    moved = tmp_path / "elsewhere"
    shutil.move(tmp_path / "out", moved)
    original = {v.name: v.const_value.numpy() for v in chain().graph.initializers.values() if v.const_value}
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(moved / "model.onnx").graph.initializer}
    assert found.keys() == original.keys()
    assert all(np.array_equal(found[n], a) for n, a in original.items())


def test_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        model = chain()
        parts = chain_partitions(model)
        emit(model, parts)
        write_folder(tmp_path / name, model, manifest(parts), library_file(tmp_path), portable=chain())
    assert listing(tmp_path / "one") == listing(tmp_path / "two")
    assert set(listing(tmp_path / "one")) == {"model.onnx", "model.onnx.data", "kernels.cpu.so", "manifest.json",
                                              "report.json", "portable.onnx", "portable.onnx.data"}
    onnx.checker.check_model(tmp_path / "one" / "portable.onnx")


def test_the_model_in_memory_keeps_its_weights(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    model, found, library = emitted
    before = {n: v.const_value for n, v in model.graph.initializers.items()}
    write_folder(tmp_path / "out", model, found, library)
    write_folder(tmp_path / "one.onnx", model, found, library, embed=True)
    write_folder(tmp_path / "again", model, found, library)
    assert listing(tmp_path / "out") == listing(tmp_path / "again")
    assert all(model.graph.initializers[n].const_value is t for n, t in before.items())


def test_one_self_contained_file(tmp_path: Path) -> None:
    io.save(chain(), tmp_path / "original.onnx")
    model = io.load(tmp_path / "original.onnx")
    assert isinstance(model.graph.initializers["big"].const_value, ir.ExternalTensor)
    parts = chain_partitions(model)
    emit(model, parts)
    out = tmp_path / "one.onnx"
    write_folder(out, model, manifest(parts), library_file(tmp_path), embed=True)
    data = out.read_bytes()
    out.rename(tmp_path / "moved.onnx")
    for path in tmp_path.glob("original*"):
        path.unlink()
    proto = onnx.load_from_string(data)
    onnx.checker.check_model(proto)
    assert all(t.raw_data or t.float_data for t in proto.graph.initializer)
    first, second = attributes(proto.graph.node[0]), attributes(proto.graph.node[2])
    assert (first["main_context"], first["embed_mode"]) == (1, 1)
    assert (second["main_context"], second["embed_mode"]) == (0, 1)
    assert base64.b64decode(first["ep_cache_context"]) == LIBRARY
    assert second["ep_cache_context"] == b""
    assert json.loads(first["notes"]) == {"manifest": manifest(parts).to_json(),
                                          "library_sha256": hashlib.sha256(LIBRARY).hexdigest()}
    assert json.loads(second["notes"]) == {}


def test_each_graph_of_a_self_contained_file_has_its_own_library(tmp_path: Path) -> None:
    def branch(name: str, ops: list[str]) -> onnx.GraphProto:
        names = ["x", *(f"{name}{i}" for i in range(len(ops)))]
        nodes = [helper.make_node(op, [names[i]], [names[i + 1]], names[i + 1]) for i, op in enumerate(ops)]
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in names[1:]]
        return helper.make_graph(nodes, name, [], infos[-1:], value_info=infos[:-1])

    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], "if", then_branch=branch("t", ["Relu", "Neg"]),
                                                else_branch=branch("e", ["Abs"]))], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"]),
                               helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])])
    model = loaded(graph)
    n, v = named(model), values(model)
    parts = [partition(f"p_{name}", [n[name]], [v[source]], [v[name]])
             for name, source in (("t0", "x"), ("t1", "t0"), ("e0", "x"))]
    emit(model, parts)
    write_folder(tmp_path / "one.onnx", model, manifest(parts), library_file(tmp_path), embed=True)
    proto = onnx.load(tmp_path / "one.onnx")
    found = {a.name: [attributes(x)["main_context"] for x in a.g.node] for a in proto.graph.node[0].attribute}
    assert found == {"then_branch": [1, 0], "else_branch": [1]}


def test_self_contained_above_the_limit(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    model, found, library = emitted
    huge = ir.LazyTensor(lambda: pytest.fail("read"), dtype=ir.DataType.FLOAT, shape=ir.Shape([600_000_000]), name="w")
    model.graph.initializers["w"].const_value = huge
    with pytest.raises(InputError, match=r"2\.40 GB.*leave out --embed"):
        write_folder(tmp_path / "one.onnx", model, found, library, embed=True)
    assert not (tmp_path / "one.onnx").exists()
    assert leftovers(tmp_path) == []


def test_a_portable_model_does_not_fit_into_one_file(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    with pytest.raises(UsageError, match="leave one out"):
        write_folder(tmp_path / "one.onnx", *emitted, embed=True, portable=chain())


def test_constants_in_data_files_are_taken_along(tmp_path: Path) -> None:
    (tmp_path / "original.data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="original.data")
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="length", value="16")
    graph = helper.make_graph([helper.make_node("Constant", [], ["c"], "constant", value=tensor),
                               helper.make_node("Add", ["x", "c"], ["y"], "add")], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "original.onnx")
    model = ir.load(tmp_path / "original.onnx")
    write_folder(tmp_path / "out", model, manifest([]), None)
    for path in tmp_path.glob("original*"):
        path.unlink()
    proto = onnx.load(tmp_path / "out" / "model.onnx")
    (constant,) = [t for x in proto.graph.node if x.op_type == "Constant" for t in [x.attribute[0].t]] or \
        list(proto.graph.initializer)
    assert numpy_helper.to_array(constant).tolist() == [0, 1, 2, 3]


def test_nothing_compiled_needs_no_library(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    found = Manifest("cpu", type(emitted[1].library)("", "", 0, "x86-64-v3"), {}, "0" * 64, {})
    write_folder(tmp_path / "out", chain(), found, None)
    assert set(listing(tmp_path / "out")) == {"model.onnx", "model.onnx.data", "manifest.json", "report.json"}
    assert read_folder(tmp_path / "out") == found
    with pytest.raises(InternalError, match="there is no library"):
        write_folder(tmp_path / "other", emitted[0], emitted[1], None)


def test_an_earlier_result_is_replaced(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    out = tmp_path / "out"
    write_folder(out, *emitted, portable=chain())
    write_folder(out, *emitted)
    assert set(listing(out)) == {"model.onnx", "model.onnx.data", "kernels.cpu.so", "manifest.json", "report.json"}
    write_folder(tmp_path / "one.onnx", *emitted, embed=True)
    write_folder(tmp_path / "one.onnx", *emitted, embed=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["built.so", "one.onnx", "out"]


def test_a_link_is_followed(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    write_folder(tmp_path / "real", *emitted)
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", *emitted, portable=chain())
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "portable.onnx").exists()


def put(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("mine")
        return
    path.mkdir()
    if kind == "folder":
        (path / "thesis.txt").write_text("mine")
    elif kind == "other manifest":
        (path / "manifest.json").write_text('{"name": "a web app"}')


@pytest.mark.parametrize(("kind", "said"), [("file", "is not a folder"),
                                            ("folder", "is not a folder that tilegraph wrote"),
                                            ("other manifest", "is not a folder that tilegraph wrote")])
def test_what_is_not_ours_needs_force(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path], kind: str,
                                      said: str) -> None:
    out = tmp_path / "out"
    put(out, kind)
    before = out.read_text() if kind == "file" else listing(out)
    with pytest.raises(InputError, match=said):
        write_folder(out, *emitted)
    assert (out.read_text() if kind == "file" else listing(out)) == before
    write_folder(out, *emitted, force=True)
    assert read_folder(out) == emitted[1]
    assert leftovers(tmp_path) == []


def test_an_empty_folder_is_free(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    put(tmp_path / "out", "empty")
    write_folder(tmp_path / "out", *emitted)
    assert read_folder(tmp_path / "out") == emitted[1]


def test_files_that_the_user_put_into_our_folder(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    out = tmp_path / "out"
    write_folder(out, *emitted)
    (out / "inputs.npz").write_text("mine")
    with pytest.raises(InputError, match=r"holds what tilegraph did not write \(inputs\.npz\)"):
        write_folder(out, *emitted)
    assert (out / "inputs.npz").read_text() == "mine"


@pytest.mark.parametrize(("content", "force", "said"), [
    (b"mine", False, "is not a model that tilegraph wrote"), (b"", False, "is not a model"), (b"mine", True, None)])
def test_self_contained_over_another_file(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path], content: bytes,
                                          force: bool, said: str | None) -> None:
    out = tmp_path / "one.onnx"
    out.write_bytes(content)
    if said is None:
        write_folder(out, *emitted, embed=True, force=force)
        onnx.checker.check_model(out)
        return
    with pytest.raises(InputError, match=said):
        write_folder(out, *emitted, embed=True, force=force)
    assert out.read_bytes() == content


def test_some_places_are_never_replaced(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "original.onnx").write_text("mine")
    for place, said in ((Path(), "never replaced"), (tmp_path / "here", "never replaced"),
                        (tmp_path / "home", "never replaced"), (tmp_path / "models", "which the model is read from"),
                        (tmp_path / "models" / "original.onnx", "which the model is read from")):
        with pytest.raises(InputError, match=said):
            write_folder(place, *emitted, force=True, sources=[tmp_path / "models" / "original.onnx"])
    assert (tmp_path / "models" / "original.onnx").read_text() == "mine"


def test_the_folder_that_the_weights_are_mapped_from(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    io.save(chain(), tmp_path / "models" / "original.onnx")
    model = io.load(tmp_path / "models" / "original.onnx")
    parts = chain_partitions(model)
    emit(model, parts)
    with pytest.raises(InputError, match=r"would remove .*original\.onnx\.data"):
        write_folder(tmp_path / "models", model, manifest(parts), library_file(tmp_path), force=True)


def test_a_missing_parent(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    with pytest.raises(InputError, match=r"the folder .*missing does not exist"):
        write_folder(tmp_path / "missing" / "out", *emitted)


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path],
                                                 existing: bool) -> None:
    out = tmp_path / "out"
    if existing:
        write_folder(out, *emitted, portable=chain())
    before = listing(out) if existing else None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # writes beyond it fail with EFBIG
    try:
        with pytest.raises(InputError, match="out"):
            write_folder(out, *emitted)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert (listing(out) if out.exists() else None) == before
    assert leftovers(tmp_path) == []


def test_the_message_of_a_full_disk(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(InputError, match="the disk is full; free some space"):
        write_folder(tmp_path / "out", *emitted)


@pytest.mark.parametrize("exchange", [True, False])
def test_both_ways_to_swap(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path], exchange: bool,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(staging, "_exchange", lambda one, other: False)
    write_folder(tmp_path / "out", *emitted, portable=chain())
    write_folder(tmp_path / "out", *emitted)
    assert not (tmp_path / "out" / "portable.onnx").exists()
    assert leftovers(tmp_path) == []


def test_a_killed_run_leaves_no_result_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from tilegraph.emit import staging
        with staging.staging(Path(sys.argv[1])) as work:
            (work / "new").mkdir()
            (work / "new" / "manifest.json").write_text("{}")
            print("ready", flush=True)
            if sys.argv[2] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.stdin.read()
    """)
    out = tmp_path / "out"

    def start(how: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", script, str(out), how], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    with start("die") as dead:
        dead.wait()
    assert not out.exists()
    (left,) = leftovers(tmp_path)
    with start("live") as living:
        (used,) = leftovers(tmp_path)  # the dead one's went when the living one began
        assert used != left
        with staging.staging(tmp_path / "out"):
            assert used in leftovers(tmp_path)
        with staging.staging(tmp_path / "another"):
            assert used in leftovers(tmp_path)
        living.communicate("")
    assert leftovers(tmp_path) == []


def test_partitions_and_programs_must_agree(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    model, found, library = emitted
    del found.programs["p1"]
    with pytest.raises(InternalError, match="disagree about the partitions p1"):
        write_folder(tmp_path / "out", model, found, library)
    assert not (tmp_path / "out").exists()


def test_the_library_must_be_the_described_one(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path]) -> None:
    model, found, library = emitted
    library.write_bytes(LIBRARY + b"x")
    with pytest.raises(InternalError, match="not the one that the manifest describes"):
        write_folder(tmp_path / "out", model, found, library)
    library.unlink()
    with pytest.raises(InternalError, match="does not exist"):
        write_folder(tmp_path / "out", model, found, library)


@pytest.mark.parametrize(("damage", "said"), [
    ("no folder", "no such folder"), ("no manifest", r"no manifest\.json in it"),
    ("no model", r"model\.onnx is missing"),
    ("no library", r"kernels\.cpu\.so is missing"), ("other library", "changed after it was written"),
    ("bad manifest", "not readable as JSON"), ("folder for a file", "cannot be read")])
def test_reading_a_damaged_folder(tmp_path: Path, emitted: tuple[ir.Model, Manifest, Path], damage: str,
                                  said: str) -> None:
    out = tmp_path / "out"
    write_folder(out, *emitted)
    if damage == "no folder":
        out = tmp_path / "nowhere"
    elif damage == "other library":
        (out / "kernels.cpu.so").write_bytes(LIBRARY[:-1] + b"?")
    elif damage == "bad manifest":
        (out / "manifest.json").write_text("{")
    else:
        name = {"model": "model.onnx", "library": "kernels.cpu.so"}.get(damage.split()[-1], "manifest.json")
        (out / name).unlink()
        if damage == "folder for a file":
            (out / name).mkdir()
    with pytest.raises(InputError, match=said):
        read_folder(out)


def test_hashing_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * 40_000)
    assert sha256_file(tmp_path / "f") == hashlib.sha256(bytes(range(256)) * 40_000).hexdigest()
    with pytest.raises(FileNotFoundError):
        sha256_file(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be read"):
        sha256_file(tmp_path)
