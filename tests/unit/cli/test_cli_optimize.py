"""`optimize` and `explain` over a compiler that only records what it was asked: the layer above is what is tested."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tilegraph
from tilegraph.cli import main
from tilegraph.diagnostics import Diagnostics

SUMMARY = {"model": "m.onnx", "target": "cpu", "nodes_before": 9, "nodes_after": 4, "regions": 2, "partitions": 1,
           "engines": {"tilegraph": 1, "onnxruntime": 3}, "attentions": [], "layout_conversions": [],
           "refusals": [{"node": "mm", "op": "MatMul", "reason": "stays with ORT"}], "seconds": {"load": 0.25}}


class Recorder:
    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.saved: dict[str, Any] | None = None

    def optimize(self, model: Path, target: str = "cpu", **options: Any) -> Any:
        self.asked = {"model": model, "target": target, **options}
        diagnostics = Diagnostics()
        diagnostics.took("fuse", "region_0", "3 pointwise nodes", op="Gelu", nodes=["a", "b"])
        diagnostics.refused("partition", "mm", "stays with ORT", op="MatMul")
        return SimpleNamespace(report=lambda: {**SUMMARY, "decisions": diagnostics.to_json()}, save=self.save)

    def save(self, folder: Path, **options: Any) -> Path:
        self.saved = {"folder": folder, **options}
        folder.write_bytes(b"saved")
        return folder


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    module = ModuleType("tilegraph.compiler")
    module.optimize = made.optimize  # type: ignore[attr-defined]
    module.list_passes = lambda target: ["fold", "fuse"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tilegraph.compiler", module)
    monkeypatch.setattr(tilegraph, "compiler", module, raising=False)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    return path


def test_every_option_reaches_the_compiler(recorder: Recorder, model: Path, tmp_path: Path) -> None:
    assert main(["optimize", str(model), "--target", "cpu", "-o", str(tmp_path / "out"), "--dim", "batch=2", "--embed",
                 "--offload", "all", "--portable", "--disable", "fold", "--disable", "fuse", "--mcpu", "x86-64-v3",
                 "--precision", "bf16", "--weights", "int4", "--fast-winograd", "--trust-hidden",
                 "--dump", str(tmp_path / "d"), "--cache-dir", str(tmp_path / "c"), "--force",
                 "-q"]) == 0
    asked = recorder.asked
    assert callable(asked.pop("progress"))
    assert asked == {"model": model, "target": "cpu", "dims": {"batch": 2}, "offload": "all",
                     "disable": ["fold", "fuse"], "mcpu": "x86-64-v3", "precision": "bf16",
                     "weights": "int4", "fast_winograd": True, "trust_hidden": True, "dump": tmp_path / "d",
                     "cache_dir": tmp_path / "c", "dry_run": False}
    assert type(asked["offload"]) is type(asked["precision"]) is str
    assert recorder.saved == {"folder": tmp_path / "out", "force": True, "embed": True, "portable": True}


def test_every_option_of_explain_reaches_the_compiler(recorder: Recorder, model: Path) -> None:
    assert main(["explain", str(model), "--dim", "n=3", "--offload", "none", "--disable", "fold", "--mcpu", "x86-64-v4",
                 "--precision", "bf16", "--weights", "int8", "--fast-winograd", "--trust-hidden", "-q"]) == 0
    assert callable(recorder.asked.pop("progress"))
    assert recorder.asked == {"model": model, "target": "cpu", "dims": {"n": 3}, "offload": "none",
                              "disable": ["fold"], "mcpu": "x86-64-v4", "precision": "bf16", "weights": "int8",
                              "fast_winograd": True, "trust_hidden": True, "dry_run": True, "sample": None}


@pytest.mark.parametrize(("options", "told"), [
    (["--dump", "plain"], "--dump plain: is not a folder"), (["--cache-dir", "plain"], "--cache-dir plain: is not"),
    (["--json", "no/x.json"], "no/x.json: cannot be written (the folder no does not exist)"),
])
def test_places_that_cannot_be_written_to_are_refused_first(options: list[str], told: str, recorder: Recorder,
                                                            model: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(model.parent)
    Path("plain").touch()
    assert main(["optimize", str(model), *options]) == 2
    assert told in capsys.readouterr().err
    assert recorder.asked == {}


def test_the_summary_and_where_the_folder_is(recorder: Recorder, model: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(model)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "nodes 9 -> 4, regions 2, partitions 1" in shown.out
    assert "engines: 1 tilegraph, 3 onnxruntime" in shown.out
    assert f"written: {model.with_suffix('.tilegraph')}" in shown.out
    assert f"sha256: {hashlib.sha256(b'saved').hexdigest()}" in shown.out


def test_quiet_prints_nothing(recorder: Recorder, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(model), "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_dry_run_saves_nothing(recorder: Recorder, model: Path) -> None:
    assert main(["optimize", str(model), "--dry-run", "-q"]) == 0
    assert recorder.asked["dry_run"] is True
    assert recorder.saved is None


def test_json_to_stdout_is_alone_there(recorder: Recorder, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(model), "--json", "-"]) == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert "nodes 9 -> 4" in shown.err
    assert {k: data[k] for k in SUMMARY} == SUMMARY
    assert data["decisions"] == [
        {"stage": "fuse", "subject": "region_0", "op": "Gelu", "taken": True, "reason": "3 pointwise nodes",
         "data": {"nodes": ["a", "b"]}},
        {"stage": "partition", "subject": "mm", "op": "MatMul", "taken": False, "reason": "stays with ORT"}]


def test_list_passes_needs_no_model(recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--list-passes"]) == 0
    assert capsys.readouterr().out == "fold\nfuse\n"


def test_explain_shows_decisions_and_writes_reports(recorder: Recorder, model: Path, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    out = {k: tmp_path / f"r.{k}" for k in ("json", "html", "md")}
    assert main(["explain", str(model), "--json", str(out["json"]), "--html", str(out["html"]), "--markdown",
                 str(out["md"])]) == 0
    assert recorder.asked["dry_run"] is True
    shown = capsys.readouterr().out
    assert "region_0" in shown
    # The refusal is both a decision and in the summary: shown once.
    assert shown.count("stays with ORT") == 1
    assert json.loads(out["json"].read_text())["refusals"] == SUMMARY["refusals"]
    assert "<td>mm</td><td>MatMul</td>" in out["html"].read_text()
    assert "| mm | MatMul | stays with ORT |" in out["md"].read_text()
