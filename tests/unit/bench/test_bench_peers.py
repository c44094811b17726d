"""Which provider a path gets, and the errors for what is not a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tilegraph.bench import Peer, peer_for
from tilegraph.errors import InputError
from tilegraph.spec.artifact import EP_NAME


def _write(path: Path, op: str = "Relu", **attributes: Any) -> Path:
    domain = "com.microsoft" if op == "EPContext" else ""
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **attributes)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("x", "y")]
    onnx.save(helper.make_model(helper.make_graph([node], "g", value[:1], value[1:])), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "m.tilegraph"
    made.mkdir()
    _write(made / "model.onnx")
    _write(made / "portable.onnx")
    (made / "manifest.json").write_text("{}")
    return made


def test_a_plain_model_runs_on_the_cpu_provider(tmp_path: Path) -> None:
    peer = peer_for(_write(tmp_path / "a.onnx"))
    assert (peer.name, peer.provider, peer.optimization) == ("a.onnx", "CPUExecutionProvider", "all")


def test_a_folder_of_ours_and_the_model_in_it_run_on_the_plugin(folder: Path) -> None:
    for source in (folder, folder / "model.onnx", str(folder)):
        peer = peer_for(source)
        assert peer.provider == EP_NAME
        assert peer.path == folder / "model.onnx"


def test_the_portable_model_in_a_folder_runs_on_the_cpu_provider(folder: Path) -> None:
    assert peer_for(folder / "portable.onnx").provider == "CPUExecutionProvider"


def test_an_embedded_model_runs_on_the_plugin_and_a_foreign_context_does_not(tmp_path: Path) -> None:
    ours = _write(tmp_path / "ours.onnx", "EPContext", source=EP_NAME)
    foreign = _write(tmp_path / "foreign.onnx", "EPContext", source="OtherExecutionProvider")
    assert peer_for(ours).provider == EP_NAME
    assert peer_for(foreign).provider == "CPUExecutionProvider"
    branch = onnx.load(ours).graph
    branch.ClearField("input")
    inside = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    ends = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), branch.output[0]]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    onnx.save(helper.make_model(helper.make_graph([inside], "g", [ends[0], x], ends[1:])), tmp_path / "inside.onnx")
    assert peer_for(tmp_path / "inside.onnx").provider == EP_NAME


def test_errors_name_the_path_and_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.onnx: no such file"):
        peer_for(tmp_path / "gone.onnx")
    with pytest.raises(InputError, match=r"a folder without manifest\.json"):
        peer_for(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff not protobuf")
    with pytest.raises(InputError, match=r"bad\.onnx is not an ONNX model"):
        peer_for(tmp_path / "bad.onnx")


def test_an_unknown_optimization_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'most'"):
        Peer("x", tmp_path, optimization="most")
