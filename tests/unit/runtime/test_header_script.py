"""tools/fetch_ort_headers.sh where no network is needed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "fetch_ort_headers.sh"


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env={**os.environ, "ONNXRUNTIME_INCLUDE_DIR": str(folder)}, capture_output=True,
                          text=True, check=False)


def write(folder: Path, version: int) -> None:
    (folder / "onnxruntime_c_api.h").write_text(f"#pragma once\n#define ORT_API_VERSION {version}\n")
    (folder / "onnxruntime_ep_c_api.h").write_text("")


def test_the_named_folder_comes_first(tmp_path: Path) -> None:
    write(tmp_path, 23)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n")


@pytest.mark.parametrize("version", [None, 22])
def test_a_named_folder_without_usable_headers(tmp_path: Path, version: int | None) -> None:
    if version:
        write(tmp_path, version)
    done = run(tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"ONNXRUNTIME_INCLUDE_DIR={tmp_path} has no ONNX Runtime headers of version 1.23 or newer" in done.stderr
