"""How peers are made and which of them take part, with tools and answers that are scripted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilegraph.bench import Peer, WorkerDied
from tilegraph.bench import rivals as module
from tilegraph.bench.kinds import KINDS, Found
from tilegraph.errors import InputError

WANTED = np.arange(1, 5, dtype=np.float32)
FEEDS = {"x": WANTED}


@pytest.fixture
def original(tmp_path: Path) -> Path:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _tool(tmp_path: Path, body: str, kind: str = "onnxsim", version: str = "1") -> Found:
    """An interpreter that runs `body` with the model as $4 and the output as $5 (after -m, module, tool)."""
    python = tmp_path / f"python-{kind}-{version}"
    python.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{body}\n")
    python.chmod(0o755)
    return Found(KINDS[kind], str(python), ((kind, version),))


def _answer(monkeypatch: pytest.MonkeyPatch, **by_name: object) -> None:
    def answers(peer: Peer, feeds: object) -> list[np.ndarray]:
        found = by_name.get(peer.name.replace("-", "_"), WANTED)
        if isinstance(found, Exception):
            raise found
        return [np.asarray(found)]

    monkeypatch.setattr(module, "_answers", answers)


def test_a_tools_file_is_made_once_for_each_content_and_version(original: Path, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch)
    runs = tmp_path / "runs"
    found = _tool(tmp_path, 'cp "$4" "$5"')
    for _ in range(2):
        (one,) = module.rivals(original, FEEDS, [found], tmp_path / "cache")
        assert (one.name, one.reason, one.versions, one.error) == ("onnxsim", "", "onnxsim 1", 0.0)
        assert one.peer is not None
        assert one.peer.path.read_bytes() == original.read_bytes()
        assert (one.peer.engine, one.peer.python, one.peer.create) == ("onnxruntime", sys.executable, False)
    assert runs.read_text().count("run") == 1
    module.rivals(original, FEEDS, [_tool(tmp_path, 'cp "$4" "$5"', version="2")], tmp_path / "cache")
    assert runs.read_text().count("run") == 2
    model = onnx.load(original)
    model.doc_string = "another"
    onnx.save(model, original)
    module.rivals(original, FEEDS, [found], tmp_path / "cache")
    assert runs.read_text().count("run") == 3


@pytest.mark.parametrize(("body", "reason"), [
    ('echo "out of luck" >&2; exit 1', "failed: out of luck"),
    ("exit 0", "failed: exit code 0, no output"),
    ('cp "$4" "$5"; touch "$(dirname "$5")/w.data"', "failed: onnxsim wrote w.data beside the model"),
])
def test_a_tool_that_fails_is_named_and_leaves_no_file(original: Path, tmp_path: Path, body: str, reason: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch)
    (one,) = module.rivals(original, FEEDS, [_tool(tmp_path, body)], tmp_path / "cache")
    assert one.peer is None
    assert one.reason == reason
    assert not list((tmp_path / "cache").rglob("*.onnx"))


def test_a_tool_that_hangs_is_ended(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOOL_TIMEOUT_S", 0.3)
    with pytest.raises(InputError, match="onnxsim took more than"):
        module.tool_output(original, _tool(tmp_path, "exec sleep 20"), tmp_path / "cache")


def test_two_tools_with_the_same_output_are_timed_once(original: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch)
    both = [_tool(tmp_path, 'cp "$4" "$5"', kind) for kind in ("onnxsim", "onnxscript")]
    first, second = module.rivals(original, FEEDS, both, tmp_path / "cache")
    assert first.peer is not None
    assert second.peer is None
    assert second.reason == "the same file as onnxsim's"


def test_wrong_answers_failures_and_absence_keep_a_peer_out(original: Path, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Found(KINDS["onnxsim"], absent="not there"), Found(KINDS["openvino"], sys.executable),
             Found(KINDS["openvino-fixed"], sys.executable), Found(KINDS["torch-sdpa"], sys.executable)]
    special = [Peer("crashes", original), Peer("fine", original)]
    _answer(monkeypatch, openvino=WANTED * 1.01, openvino_fixed=InputError("no such op"),
            crashes=WorkerDied("signal SIGSEGV"))
    entries = {r.name: r for r in module.rivals(original, FEEDS, found, tmp_path, special)}
    assert list(entries) == ["onnxsim", "openvino", "openvino-fixed", "crashes", "fine"]
    assert entries["onnxsim"].reason == "absent: not there"
    assert entries["openvino"].reason.startswith("wrong answers: output 0 is 0.01 of its largest value away")
    assert entries["openvino-fixed"].reason == "failed: no such op"
    assert entries["crashes"].reason == "failed: signal SIGSEGV"
    assert [name for name, r in entries.items() if r.peer] == ["fine"]
    assert [r.to_json()["timed"] for r in entries.values()] == [False] * 4 + [True]


def test_only_the_fixed_kind_is_told_the_sizes(original: Path, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch)
    found = [Found(KINDS[kind], "/elsewhere/python") for kind in ("openvino", "openvino-fixed")]
    free, fixed = (r.peer for r in module.rivals(original, FEEDS, found, tmp_path))
    assert free is not None
    assert fixed is not None
    assert (free.engine, free.python, dict(free.provider_options)) == ("openvino", "/elsewhere/python", {})
    assert dict(fixed.provider_options) == {"x": "[4]"}
