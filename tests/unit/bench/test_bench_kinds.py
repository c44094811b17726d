"""Where peers are looked for, and what is said of those that are absent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilegraph.bench import kinds
from tilegraph.bench.kinds import KINDS, find
from tilegraph.errors import UsageError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kinds.PYTHON_VARIABLE, raising=False)


def _interpreters(monkeypatch: pytest.MonkeyPatch, **have: dict[str, str]) -> list[str]:
    asked: list[str] = []

    def versions(python: str, distributions: object) -> dict[str, str]:
        asked.append(python)
        return have["this" if python == sys.executable else "other"]

    monkeypatch.setattr(kinds, "versions", versions)
    return asked


def test_this_interpreter_is_preferred_and_the_other_one_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    _interpreters(monkeypatch, this={"onnx": "1", "onnxsim": "2"},
                  other={"onnx": "3", "onnxsim": "4", "openvino": "5", "numpy": "6"})
    sim, vino = find(["onnxsim", "openvino"], "/elsewhere/python")
    assert (sim.python, sim.versions, sim.absent) == (sys.executable, (("onnxsim", "2"), ("onnx", "1")), "")
    assert vino.python == "/elsewhere/python"
    assert str(vino) == "openvino (openvino 5, numpy 6)"


def test_all_that_a_kind_needs_must_be_in_one_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    _interpreters(monkeypatch, this={"onnxruntime": "1", "onnx": "1"}, other={"torch": "2"})
    (one,) = find(["transformers"], "/elsewhere/python")
    assert one.python == ""
    assert str(one).startswith("transformers: absent, torch not installed in this interpreter, nor in the one that")


def test_each_absent_peer_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _interpreters(monkeypatch, this={})
    found = find()
    assert [f.kind.name for f in found] == list(KINDS)
    assert all(f.absent and not f.python for f in found)
    assert asked == [sys.executable]
    assert "neither TILEGRAPH_PEERS_PYTHON nor --peers-python" in found[0].absent


def test_the_environment_names_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _interpreters(monkeypatch, this={}, other={})
    monkeypatch.setenv(kinds.PYTHON_VARIABLE, "/from/environment")
    find(["openvino"])
    assert asked == [sys.executable, "/from/environment"]
    asked.clear()
    find(["openvino"], "/given")
    assert asked == [sys.executable, "/given"]


def test_none_asks_nobody_and_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _interpreters(monkeypatch, this={})
    assert find([]) == ()
    assert asked == []
    with pytest.raises(UsageError, match="no peer tensorrt; there are: onnxsim"):
        find(["openvino", "tensorrt"])


def test_versions_are_those_of_the_interpreter_that_is_asked() -> None:
    import numpy as np

    assert kinds.versions(sys.executable, ["numpy", "no-such-distribution"]) == {"numpy": np.__version__}


def test_what_is_no_interpreter_is_named(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    for python in (str(script), str(tmp_path / "gone")):
        with pytest.raises(UsageError, match=f"{python}, named for peers, does not run"):
            find(["openvino"], python)
