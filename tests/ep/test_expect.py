"""Pinning: the provider, Python and verify load the folder that was named, and nothing else."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ep_support as ep
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tilegraph.runtime as runtime
from tilegraph.errors import InputError, UsageError
from tilegraph.spec.artifact import EP_NAME
from tilegraph.spec.digest import artifact_sha256, check_sha256

State = ort.capi.onnxruntime_pybind11_state


def by_provider(path: Path, digest: str, **options: Any) -> Any:
    """A session that only the provider checks."""
    runtime.register()
    return ort.InferenceSession(str(path), providers=[(EP_NAME, {"expect_sha256": digest, **options}),
                                                      "CPUExecutionProvider"])


@pytest.fixture
def folder(tmp_path: Path, add_one: Path) -> Path:
    return ep.Artifact(add_one, {"p": ep.add_one_program("n", 4)}).write(tmp_path / "m").parent


def test_the_digest_is_what_sha256sum_says(folder: Path) -> None:
    for extra in ("", " model.onnx.data"):
        script = f"sha256sum kernels.cpu.so manifest.json model.onnx{extra} | sha256sum"
        said = subprocess.check_output(["sh", "-c", script], cwd=folder, text=True).split()[0]
        assert artifact_sha256(folder) == said
        by_provider(folder / "model.onnx", said)
        (folder / "model.onnx.data").write_bytes(np.random.default_rng(0).bytes(3_000_001))


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 1 << 20, (1 << 20) + 1, (3 << 20) - 9])
def test_files_of_any_size(folder: Path, size: int) -> None:
    (folder / "model.onnx.data").write_bytes(b"x" * size)
    by_provider(folder / "model.onnx", artifact_sha256(folder))


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "manifest.json", "kernels.cpu.so"])
def test_a_changed_file_is_refused(folder: Path, name: str, compile_kernels: Callable[..., Path]) -> None:
    (folder / "model.onnx.data").write_bytes(b"weights")
    digest = artifact_sha256(folder)
    by_provider(folder / "model.onnx", digest)
    if name == "model.onnx":
        model = onnx.load(folder / name)
        model.producer_name = "someone else"
        onnx.save(model, folder / name)
    elif name == "model.onnx.data":
        (folder / name).write_bytes(b"heights")
    else:  # another folder, whole and consistent
        library = compile_kernels(ep.ADD_ONE + ("/* other */" if name == "manifest.json" else ep.SCALE))
        ep.Artifact(library, {"p": ep.add_one_program("n", "m")}).write(folder)
    with pytest.raises(State.InvalidGraph, match=r"is not the model that expect_sha256 names.*do not load it"):
        by_provider(folder / "model.onnx", digest)
    with pytest.raises(InputError, match="not the expected"):
        runtime.session(folder, options={"expect_sha256": digest})
    with pytest.raises(InputError, match="not the expected"):
        check_sha256(folder, digest)
    runtime.session(folder, options={"expect_sha256": artifact_sha256(folder)})


def test_an_embedded_model(tmp_path: Path, add_one: Path) -> None:
    model = ep.Artifact(add_one, {"p": ep.add_one_program("n")}, embed=True).write(tmp_path / "m")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert artifact_sha256(model) == digest
    by_provider(model, digest)
    with pytest.raises(State.InvalidGraph, match="expect_sha256 names"):
        by_provider(model, "0" * 64)
    runtime.register()
    with pytest.raises(State.InvalidGraph, match="given as bytes, so expect_sha256 cannot be checked"):
        ort.InferenceSession(model.read_bytes(), providers=[(EP_NAME, {"expect_sha256": digest}),
                                                            "CPUExecutionProvider"])


@pytest.mark.parametrize("digest", ["", "abc", "A" * 64, "g" * 64, "0" * 65])
def test_what_is_no_digest(folder: Path, digest: str) -> None:
    with pytest.raises(State.InvalidArgument, match=r"option expect_sha256.*64 lower-case hexadecimal"):
        by_provider(folder / "model.onnx", digest)
    with pytest.raises(UsageError, match="64 lower-case hexadecimal"):
        check_sha256(folder, digest)
