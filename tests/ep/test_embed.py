"""Models that carry their library, and models that are given as bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tilegraph.runtime as runtime
from tilegraph.spec.artifact import EP_NAME

Serve = Callable[..., Any]
State = ort.capi.onnxruntime_pybind11_state
X = np.arange(3, dtype=np.float32)


def from_bytes(model: bytes, **config: str) -> Any:
    runtime.register()
    options = ort.SessionOptions()
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return ort.InferenceSession(model, options, providers=[EP_NAME, "CPUExecutionProvider"])


def test_one_file_is_enough(tmp_path: Path, add_one: Path) -> None:
    nodes = [ep.Node("p", ["x"], ["a"], "first"), ep.Node("q", ["a"], ["y"], "second")]
    programs = {"p": ep.add_one_program("n"), "q": ep.add_one_program("n")}
    path = ep.Artifact(add_one, programs, nodes=nodes, embed=True).write(tmp_path / "m")
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]
    np.testing.assert_array_equal(runtime.session(path).run(None, {"x": X})[0], X + 2)
    np.testing.assert_array_equal(from_bytes(path.read_bytes()).run(None, {"x": X})[0], X + 2)


@pytest.mark.parametrize(("attributes", "match"), [
    ({"ep_cache_context": "not base64!"}, "does not hold a library in base64"),
    ({"ep_cache_context": ""}, "does not hold a library in base64"),
    ({"ep_cache_context": base64.b64encode(b"another library").decode()}, "was changed or damaged: its SHA-256"),
    ({"notes": json.dumps({"manifest": "m.json", "manifest_sha256": "", "library_sha256": ""})}, "hold no manifest"),
    ({"notes": "{}"}, "hold no manifest"),
    ({"embed_mode": 2}, "embed_mode is 2, must be 0 or 1"),
    ({"main_context": 0}, "no node with main_context 1 carries this partition's library"),
])
def test_a_bad_embedded_library(serve: Serve, add_one: Path, attributes: dict[str, Any], match: str) -> None:
    node = ep.Node("p", attributes=attributes)
    with pytest.raises(State.InvalidGraph, match=f"node_p.*{match}.*run tilegraph optimize again"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=[node], embed=True))


def test_a_flipped_bit_in_an_embedded_library(serve: Serve, add_one: Path) -> None:
    def flip(model: onnx.ModelProto) -> None:
        for attribute in model.graph.node[0].attribute:
            if attribute.name == "ep_cache_context":
                image = bytearray(base64.b64decode(attribute.s))
                image[len(image) // 2] ^= 4
                attribute.s = base64.b64encode(image)

    with pytest.raises(State.InvalidGraph, match=r"embedded in .*node_p.* was changed or damaged"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, embed=True, edit_model=flip))


def test_a_node_whose_partition_no_embedded_library_has(serve: Serve, add_one: Path) -> None:
    nodes = [ep.Node("p", ["x"], ["a"]), ep.Node("other", ["a"], ["y"])]
    with pytest.raises(State.InvalidGraph, match=r"node_other.*no node with main_context 1 carries"):
        serve(ep.Artifact(add_one, {"p": ep.add_one_program(3)}, nodes=nodes, embed=True))


def test_bytes_of_a_folder(tmp_path: Path, add_one: Path) -> None:
    """The folder is named by ep.context_file_path: the model's path, or the folder itself."""
    path = ep.Artifact(add_one, {"p": ep.add_one_program(3)}).write(tmp_path / "m")
    for named in (path, path.parent, path.parent / "not_there.onnx"):
        session = from_bytes(path.read_bytes(), ep__context_file_path=str(named))
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X + 1)
    with pytest.raises(State.InvalidGraph, match=r"node_p.*given as bytes.*ep\.context_file_path.*--embed"):
        from_bytes(path.read_bytes())
    with pytest.raises(State.NoSuchFile, match="cannot be opened"):
        from_bytes(path.read_bytes(), ep__context_file_path=str(tmp_path / "m2" / "model.onnx"))
