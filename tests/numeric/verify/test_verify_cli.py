"""`tilegraph verify` as a program: exit codes, JSON, messages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from verify_pairs import Pairs

import tilegraph
from tilegraph.cli import main

F = np.float32
TEXT = "g (float[n, 4] x) => (float[n, 4] y) { y = Add(x, b) }"


@pytest.fixture
def pair(make: Pairs) -> tuple[str, str]:
    return str(make(TEXT, b=np.zeros(4, F))), str(make(TEXT, b=np.array([0, 0, 1, 0], F)))


def test_exit_codes(pair: tuple[str, str], make: Pairs, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = pair
    assert main(["verify", a, a]) == 0
    assert "same answers on 3 samples (seed 0)" in capsys.readouterr().out
    assert main(["verify", a, b]) == 1
    shown = capsys.readouterr().out
    assert "different answers" in shown
    assert "first at [0, 2]" in shown
    constant = str(make("g (float[n] x) => (float[n] y) { y = Sub(x, x) }"))
    assert main(["verify", constant, constant]) == 2
    assert "equal outputs prove nothing" in capsys.readouterr().err
    assert main(["verify", a, b, "--atol", "2"]) == 0
    assert main(["verify", a, b, "-q"]) == 1
    capsys.readouterr()
    assert main(["verify", a, a, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_json_fields(pair: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = pair
    assert main(["verify", a, b, "--json", "-", "--samples", "2", "--seed", "5"]) == 1
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert "different answers" in shown.err
    assert data["same"] is False
    assert {"name", "same", "max_abs", "max_rel", "rtol", "atol"} <= data["outputs"][0].keys()
    assert data["reference"] == "ORT in float64"
    assert (data["samples"], data["seed"]) == (2, 5)
    assert data["outputs"][0]["max_abs"] == pytest.approx(1, rel=1e-5)
    assert main(["verify", a, a, "--json", str(tmp_path / "v.json"), "-q"]) == 0
    assert json.loads((tmp_path / "v.json").read_text())["same"] is True


@pytest.mark.parametrize(("options", "told"), [
    (["--dim", "m=2"], "no input has a symbolic dim of that name (there are: n)"),
    (["--inputs", "none.npz"], "none.npz: no such file"), (["--rtol", "-1"], "not negative"),
])
def test_bad_options(pair: tuple[str, str], options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *pair, *options]) == 2
    assert told in capsys.readouterr().err


def test_inputs_from_a_file(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((5, 4), F))
    assert main(["verify", pair[0], pair[0], "--inputs", str(tmp_path / "in.npz")]) == 2  # every value is 1
    assert "constant (1.0 everywhere)" in capsys.readouterr().err
    np.savez(tmp_path / "in.npz", x=np.arange(20, dtype=F).reshape(5, 4))
    assert main(["verify", pair[0], pair[0], "--inputs", str(tmp_path / "in.npz")]) == 0
    np.savez(tmp_path / "in.npz", z=np.ones((5, 4), F))
    assert main(["verify", pair[0], pair[0], "--inputs", str(tmp_path / "in.npz")]) == 2
    assert "no array for input 'x'; it has 'z', which the model does not know" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not onnx", bytes(range(200))])
def test_files_that_are_no_models(pair: tuple[str, str], content: bytes, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(content)
    for arguments in ([str(bad), pair[0]], [pair[0], str(bad)]):
        assert main(["verify", *arguments]) == 2
        shown = capsys.readouterr().err.strip().splitlines()
        assert len(shown) <= 2
        assert "bad.onnx" in shown[0]


def test_folders(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "m.tilegraph"
    folder.mkdir()
    assert main(["verify", pair[0], str(folder)]) == 2
    assert "not a tilegraph folder" in capsys.readouterr().err
    (folder / "model.onnx").write_bytes(Path(pair[0]).read_bytes())
    assert main(["verify", pair[0], str(folder)]) == 0
    # The portable form is compared too.
    (folder / "portable.onnx").write_bytes(Path(pair[1]).read_bytes())
    capsys.readouterr()
    assert main(["verify", pair[0], str(folder), "--json", "-"]) == 1
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert [(o["of"], o["same"]) for o in outputs] == [("optimized", True), ("portable", False)]


def test_python_api(pair: tuple[str, str]) -> None:
    assert tilegraph.verify(pair[0], pair[0]).same
    from tilegraph.verify import verify

    assert verify(pair[0], pair[1]).same is False
    assert tilegraph.verify(pair[0], pair[1], inputs={"x": np.arange(8, dtype=F).reshape(2, 4)}).outputs[0].max_abs == 1


def test_junit_and_a_pinned_folder(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "verify.xml"
    assert main(["verify", *pair, "--junit", str(report), "-q"]) == 1
    assert 'failures="1"' in report.read_text()
    digest = hashlib.sha256(Path(pair[0]).read_bytes()).hexdigest()
    assert main(["verify", pair[0], pair[0], "--expect-sha256", digest, "-q"]) == 0
    assert main(["verify", pair[0], pair[1], "--expect-sha256", digest, "-q"]) == 2
    assert "not the expected" in capsys.readouterr().err
