"""The Python side of serving, without ONNX Runtime."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

import tilegraph
import tilegraph.runtime as runtime
from tilegraph.errors import EnvironmentProblem
from tilegraph.spec.artifact import EP_NAME


def test_the_name_is_the_contracts() -> None:
    assert runtime.EP_NAME == EP_NAME
    assert EP_NAME.endswith("ExecutionProvider")


def test_it_is_there_without_an_import_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tilegraph, "runtime")
    assert tilegraph.runtime.session is runtime.session


def test_the_variable_names_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"")
    monkeypatch.setenv("TILEGRAPH_EP_LIBRARY", str(other))
    assert runtime.ep_library_path() == other
    other.unlink()
    with pytest.raises(EnvironmentProblem, match=r"TILEGRAPH_EP_LIBRARY names .*other\.so, which is not a file"):
        runtime.ep_library_path()


def test_a_library_that_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEGRAPH_EP_LIBRARY", raising=False)
    monkeypatch.setattr("importlib.resources.files", lambda name: tmp_path)
    monkeypatch.setattr(runtime, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(EnvironmentProblem, match=r"libtilegraph_ep\.so is not built; run `make ep`"):
        runtime.ep_library_path()


@pytest.mark.parametrize("version", ["1.22.0", "1.24.4"])
def test_an_old_onnxruntime(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake = types.ModuleType("onnxruntime")
    fake.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    monkeypatch.setattr(runtime, "_registered", None)
    with pytest.raises(EnvironmentProblem, match=rf"onnxruntime {version} is too old.*install onnxruntime>=1\.25"):
        runtime.register()


def test_no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(runtime, "_registered", None)
    with pytest.raises(EnvironmentProblem, match="onnxruntime is not installed; install onnxruntime>="):
        runtime.register()
