"""The command line without ONNX Runtime or TVM: usage, errors, exit codes, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tilegraph
from tilegraph.cli import app as cli_app
from tilegraph.cli import commands, main
from tilegraph.cli.output import dims_of, write_json, write_text
from tilegraph.errors import InputError, InternalError, UsageError


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(("arguments", "told"), [
    (["frob"], "No such command"), (["--frob"], "No such option"), (["verify", "a.onnx"], "Missing argument"),
    (["optimize"], "give the .onnx file"), (["optimize", "x.onnx", "--offload", "some"], "--offload"),
    (["optimize", "x.onnx", "--dim", "batch"], "--dim batch: write it as NAME=SIZE"),
    (["optimize", "nowhere.onnx"], "nowhere.onnx: no such file"), (["optimize", "."], ".: is a folder"),
    (["verify", "nowhere.onnx", "x"], "nowhere.onnx: no such file"), (["verify", ".", "x"], ".: is a folder"),
    (["verify", "a", "b", "--samples", "0"], "--samples"), (["bench"], "Missing argument"),
    (["explain", "nowhere"], "nowhere: no such file or folder"), (["bench", "x", "--threads", "zero"], "--threads"),
    (["bench", "x", "--json", "no/x"], "no/x: cannot be written (the folder no does not exist)"),
    (["verify", "a", "b", "--junit", "."], ".: cannot be written (it is a folder)"),
    (["explain", ".", "--html", "no/x"], "no/x: cannot be written"),
])
def test_usage_and_input_errors_exit_with_2_and_one_or_two_lines(arguments: list[str], told: str, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = lines(capsys)
    assert len(shown) in (1, 2)
    assert shown[0].startswith("error: ")
    assert told in shown[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("problem", "code", "told"), [
    (InputError("a.onnx: bad"), 2, "error: a.onnx: bad"), (UsageError("--x: no"), 2, "error: --x: no"),
    (InternalError("odd"), 3, "error: internal: odd"),
    (ZeroDivisionError("oops"), 3, "internal: ZeroDivisionError: oops"),
    (OSError(28, "No space left on device", "out.json"), 2, "error: out.json: No space left on device"),
    (KeyboardInterrupt(), 130, ""),
])
def test_exit_codes_of_exceptions(problem: BaseException, code: int, told: str, monkeypatch: pytest.MonkeyPatch,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> None:
        raise problem

    monkeypatch.setattr(commands, "explain", fail)
    assert main(["explain", "x"]) == code
    shown = lines(capsys)
    assert told in " ".join(shown[:1])
    assert len(shown) <= 2
    assert main(["explain", "x", "-v"]) == code
    trace = "\n".join(lines(capsys))
    assert ("Traceback" in trace) is (code != 130)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tilegraph {tilegraph.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in ("optimize", "verify", "bench", "explain", "targets", "ep-path"):
        assert command in shown
    assert main([]) == 2


def test_the_version_is_the_project_s() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == tilegraph.__version__


def test_help_imports_nothing_heavy() -> None:
    code = ("import sys; from tilegraph.cli import main; main(['--help'])\n"
            "print([m for m in ('onnx', 'onnx_ir', 'numpy', 'onnxruntime', 'tvm', 'jinja2') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[3])
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("module", "heavy"), [
    ("tilegraph.compiler", ("onnxruntime", "tvm")),
    ("tilegraph.verify.worker", ("onnx", "onnx_ir", "onnxruntime", "tvm")),  # several processes for each verify
])
def test_what_is_heavy_is_imported_where_it_is_used(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys; import {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[3])
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "tilegraph", "optimize", "nowhere.onnx"], capture_output=True,
                          text=True, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere.onnx: no such file\n"
    assert done.stdout == ""


def test_a_closed_pipe_is_silent() -> None:
    code = "import sys; from tilegraph.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run(["bash", "-c", f"{sys.executable} -c \"{code}\" | true; echo ${{PIPESTATUS[0]}}"],
                          capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True)
    assert done.stdout.strip() == "141"
    assert not done.stderr


@pytest.mark.parametrize(("options", "wanted"), [
    (["batch=1", "seq=128"], {"batch": 1, "seq": 128}), (["a=b=3"], {"a=b": 3}), (["x[1]=4"], {"x[1]": 4}), ([], {}),
    (["n=2", "n=2"], {"n": 2}), (["n=0"], {"n": 0}), (["n= past+m "], {"n": "past+m"}),
])
def test_dims(options: list[str], wanted: dict[str, int | str]) -> None:
    assert dims_of(options) == wanted


@pytest.mark.parametrize("options", [["n"], ["=3"], ["n=-1"], ["n=1.5"], ["n=x", "n=1"], ["n=1", "n=2"], ["n="]])
def test_wrong_dims(options: list[str]) -> None:
    with pytest.raises(UsageError, match="--dim"):
        dims_of(options)


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & 0o044  # others may read it, as far as the umask allows
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(str(path), {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(str(path), {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no/out.json: cannot be written \(No such file or directory\)"):
        write_text(tmp_path / "no" / "out.json", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_text(tmp_path / "folder", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(("model", "folder"), [
    ("a/model.onnx", "a/model.tilegraph"), ("model", "model.tilegraph"), ("v1.2.onnx", "v1.2.tilegraph"),
    ("v1.2", "v1.2.tilegraph"),
])
def test_the_default_output_is_beside_the_model(model: str, folder: str) -> None:
    assert commands.default_output(Path(model)) == Path(folder)
    assert commands.default_output(Path(model), embed=True) == Path(folder + ".onnx")


def test_every_command_of_the_app_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in cli_app.app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        assert main([name, "--help"]) == 0
        assert "Usage: tilegraph" in capsys.readouterr().out
