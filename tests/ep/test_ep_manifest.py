"""Malformed manifests: each is refused with the field's path and a reason, whatever it holds."""

from __future__ import annotations

import hashlib
import json
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

Serve = Callable[..., Any]
State = ort.capi.onnxruntime_pybind11_state


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
ROUNDS = {"first": 0, "calls": 1, "items": "n", "step": 2, "name": "r"}
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
    "equal": (at(*P, "equal", value=[["n"]]), r"equal\[0\]: it must be two extents"),
    "equal symbol": (at(*P, "equal", value=[["n", "other"]]), "the symbol 'other' is not a dim of any input"),
    "equal text": (at(*P, "equal", value="n"), "equal: it must be a list"),
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
    "item of an input": (at(*CALL, "args", 0, value=["input", 0, 4]), "only a place in the arena has bytes of an item"),
    "item without rounds": (at(*CALL, "args", 0, value=["arena", 0, 4]), "call 0 has an argument with bytes"),
    "long slot": (at(*CALL, "args", 0, value=["arena", 0, 4, 4]), "4 entries, more than 3"),
    "rounds": (at(*P, "rounds", value=[{}]), r"rounds\[0\]: it has no field 'first'"),
    "rounds of no call": (at(*P, "rounds", value=[ROUNDS | {"first": 1}]), "calls 1 to 1 are in rounds before, or"),
    "rounds twice": (at(*P, "rounds", value=[ROUNDS, ROUNDS | {"name": "s"}]), "calls 0 to 0 are in rounds before"),
    "rounds of nothing": (at(*P, "rounds", value=[ROUNDS | {"calls": 0}]), "calls: it is 0, outside 1"),
    "name of rounds": (at(*P, "rounds", value=[ROUNDS | {"name": "n"}]), "'n' is no new name"),
    "step": (at(*P, "rounds", value=[ROUNDS | {"step": -1}]), "step: it is -1, and cannot be negative"),
    "named": (at(*P, "named", value={}), "named: it must be a list"),
    "a name alone": (at(*P, "named", value=[["a"]]), r"named\[0\]: it must be a name and an expression"),
    "a name twice": (at(*P, "named", value=[["a", 1], ["a", 1]]), r"named\[1\]: 'a' is no new name"),
    "a name of a symbol": (at(*P, "named", value=[["n", 1]]), "'n' is no new name"),
    "a name for itself": (at(*P, "named", value=[["a", ["+", "a", 1]]]), "'a' is no new name"),
    "a later name": (at(*P, "named", value=[["a", ["+", "b", 1]], ["b", 1]]), r"named\[1\]: 'b' is no new name"),
    "named overflow": (at(*P, "named", value=[["a", ["*", 1 << 62, 4]]]), r"named\[0\]\[1\]: the size .* overflows"),
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
    with pytest.raises(State.InvalidGraph, match=r"manifest\.json': it "):
        runtime.session(folder)


def test_names_of_names_end_in_a_short_message(serve: Serve, add_one: Path) -> None:
    """Written out the extent has 2^20000 operands, one inside the other."""
    def edit(manifest: dict[str, Any]) -> None:
        at(*P, "named", value=[["a0", "n"], *([f"a{i + 1}", ["+", f"a{i}", f"a{i}"]] for i in range(20000))])(manifest)
        at(*CALL, "extent", value="a20000")(manifest)

    session = serve(ep.Artifact(add_one, {"p": ep.add_one_program("n")}, edit_manifest=edit))
    assert session.run(None, {"x": np.zeros(0, np.float32)})[0].size == 0
    with pytest.raises(State.InvalidArgument, match="overflows 64 bits") as error:
        session.run(None, {"x": np.zeros(1, np.float32)})
    assert len(str(error.value)) < 2000


def test_a_large_program(serve: Serve, add_one: Path) -> None:
    """Thousands of calls are ordinary: a partition is as large as possible."""
    steps = 5000
    calls = [ep.call("add_one", [ep.source(0), ep.arena(0)], [4], 4),
             *[ep.call("add_one", [ep.arena(0), ep.arena(0)], [4], 4) for _ in range(steps)],
             ep.call("add_one", [ep.arena(0), ep.result(0)], [4], 4)]
    spec = ep.program([ep.tensor("x", "float", 4)], [ep.tensor("y", "float", 4)], calls, arena_bytes=16)
    session = serve(ep.Artifact(add_one, {"p": spec}))
    np.testing.assert_array_equal(session.run(None, {"x": np.zeros(4, np.float32)})[0], np.full(4, steps + 2))
