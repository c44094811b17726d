"""The survey of speeds: turns, ratios, and models of a folder."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance import speed
from tests.conformance.sweep_cases import Case


class _Session:
    """Takes about so many seconds of CPU time a run."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, outputs: Any, feeds: Any) -> None:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass


@pytest.mark.parametrize(("first", "second"), [(3e-4, 1e-4), (2e-5, 6e-5)])
def test_the_ratio_is_that_of_the_least_times(first: float, second: float) -> None:
    found = speed.compare("m", _Session(first), _Session(second), {}, 0.05)
    assert found.original_us == pytest.approx(first * 1e6, rel=0.3)
    assert found.ratio == pytest.approx(first / second, rel=0.3)
    assert found.paired == pytest.approx(first / second, rel=0.3)


def test_a_folder_of_models_is_a_group(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    np.savez(tmp_path / "a.npz", in_x=np.ones(2, np.float32), out_0=np.ones(2, np.float32))
    case = Case(str(tmp_path), "a")
    path, feeds = speed.open_any(case)
    assert path == tmp_path / "a.onnx"
    assert list(feeds[0]) == ["x"]
    assert speed.place_of(case, tmp_path / "out").parent == tmp_path / "out"


def test_what_is_no_model_has_an_error_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    np.savez(tmp_path / "a.npz", in_x=np.ones(2, np.float32))
    ours, theirs = multiprocessing.Pipe()
    speed.prepare(Case(str(tmp_path), "a"), str(tmp_path / "out"), theirs)
    result = ours.recv()
    assert not result.good
    assert "InputError" in result.error
    assert not speed.place_of(Case(str(tmp_path), "a"), tmp_path / "out").exists()
    assert "ONNX Runtime: " in str(speed.time_case(Case(str(tmp_path), "a"), tmp_path / "out", 0.0))
