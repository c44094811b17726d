"""The composite action does what docs/ci.md says: its steps are run as a runner runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.numeric.verify.verify_pairs import save

ROOT = Path(__file__).resolve().parents[3]
yaml: Any = pytest.importorskip("yaml")


def expand(text: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        what = match.group(1)
        if what.startswith("inputs."):
            return inputs[what.removeprefix("inputs.")]
        return outputs[what.removeprefix("steps.optimize.outputs.")]

    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)


def run_action(place: Path, **given: str) -> tuple[int, dict[str, str]]:
    """The exit code of the first step that fails (0 if none does) and the outputs of the step `optimize`."""
    action = yaml.safe_load((ROOT / "docs" / "action" / "action.yml").read_text())
    assert all(v.get("required") or "default" in v for v in action["inputs"].values())
    inputs = {k: given.get(k.replace("-", "_"), v.get("default", "")) for k, v in action["inputs"].items()}
    scripts = [s for s in action["runs"]["steps"] if "run" in s and "pip install" not in s["run"]]
    assert len(scripts) == 2
    program = place / "bin" / "tilegraph"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m tilegraph \"$@\"\n")
    program.chmod(0o755)
    outputs: dict[str, str] = {}
    for step in scripts:
        variables = {k: expand(v, inputs, outputs) for k, v in step["env"].items()}
        environment = {**os.environ, **variables, "GITHUB_OUTPUT": str(place / "out"), "PYTHONPATH": os.pathsep.join(
            [str(ROOT), os.environ.get("PYTHONPATH", "")]), "PATH": f"{program.parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=place,
                              env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.returncode, {"stderr": done.stderr, "stdout": done.stdout}
        outputs |= dict(line.split("=", 1) for line in (place / "out").read_text().splitlines())
    return 0, outputs


def test_the_action(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", "g (float[n, 4] x) => (float[n, 4] y) { s = Tanh(x) y = Mul(s, x) }")
    code, outputs = run_action(tmp_path, model="m.onnx", options="--offload all --dim n=2", samples="2")
    assert code == 0, outputs
    assert re.fullmatch("[0-9a-f]{64}", outputs["sha256"])
    reports = tmp_path / "tilegraph-reports"
    assert json.loads((reports / "verify.json").read_text())["same"] is True
    (suite,) = ET.parse(reports / "verify.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


def test_the_action_fails_where_nothing_is_proved(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx", "g (float[n, 4] x) => (float[n, 4] y) { y = Sub(x, x) }")
    code, said = run_action(tmp_path, model="m.onnx")
    assert code == 2
    assert "equal outputs prove nothing" in said["stderr"]


def test_the_documented_options_exist() -> None:
    from typer.main import get_command

    from tilegraph.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for page in ("docs/ci.md", "docs/action/action.yml"):
        text = re.sub(r"\\\n", " ", (ROOT / page).read_text())
        for name, rest in re.findall(r"^ *tilegraph (optimize|verify) (.*)$", text, flags=re.MULTILINE):
            known = {o for p in commands[name].params for o in p.opts}
            assert set(re.findall(r"(?<!\w)--[\w-]+", rest)) <= known, page
