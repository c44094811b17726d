"""A C++ program serves a folder: no Python in the process, and nothing of TVM on the machine is needed."""

from __future__ import annotations

import os
import subprocess
from importlib import resources
from pathlib import Path

import ep_support as ep
import numpy as np
import pytest

import tilegraph.runtime as runtime

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program beside the ONNX Runtime library of the Python wheel, under the name that the linker wants."""
    folder = tmp_path_factory.mktemp("host")
    headers = subprocess.check_output([ROOT / "tools" / "fetch_ort_headers.sh"], text=True)
    capi = Path(str(resources.files("onnxruntime") / "capi"))
    (library,) = [p for p in capi.glob("libonnxruntime.so*") if not p.is_symlink()]
    (folder / "libonnxruntime.so.1").symlink_to(library)
    program = folder / "serve"
    subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", headers.strip(),
                    str(Path(__file__).parent / "host" / "serve.cc"), str(folder / "libonnxruntime.so.1"),
                    "-Wl,-rpath,$ORIGIN", "-o", str(program)], check=True)
    return program


def run(host: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": os.environ.get("LD_PRELOAD", ""),
                   "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "")}
    return subprocess.run([str(host), str(runtime.ep_library_path()), *arguments], cwd=folder, env=environment,
                          capture_output=True, text=True, check=False)


def test_it_serves_a_folder(host: Path, tmp_path: Path, add_one: Path) -> None:
    model = ep.Artifact(add_one, {"p": ep.add_one_program("n", 4)}).write(tmp_path / "m.tilegraph")
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    x.tofile(tmp_path / "x.raw")
    done = run(host, tmp_path, str(model), "x=x.raw:3,4")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "y 3 4\n"
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.raw", np.float32).reshape(3, 4), x + 1)


def test_it_serves_an_embedded_model(host: Path, tmp_path: Path, add_one: Path) -> None:
    model = ep.Artifact(add_one, {"p": ep.add_one_program("n")}, embed=True).write(tmp_path / "m")
    np.zeros(5, np.float32).tofile(tmp_path / "x.raw")
    done = run(host, tmp_path, str(model), "x=x.raw:5")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.raw", np.float32), np.ones(5))


def test_its_errors_are_the_providers(host: Path, tmp_path: Path, add_one: Path) -> None:
    model = ep.Artifact(add_one, {"p": ep.add_one_program("n")}).write(tmp_path / "m")
    (model.parent / "manifest.json").unlink()
    np.zeros(5, np.float32).tofile(tmp_path / "x.raw")
    done = run(host, tmp_path, str(model), "x=x.raw:5")
    assert done.returncode == 1
    assert "manifest.json' cannot be opened" in done.stderr
