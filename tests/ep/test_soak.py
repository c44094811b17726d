"""Short runs of what `make soak` does for minutes: threads and sessions under the sanitizers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ep import race
from tests.ep.soak import Soak, growth

ROOT = Path(__file__).resolve().parents[2]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.ep.soak", "--any-growth", *arguments], cwd=ROOT, check=False,
                          capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_threads_and_sessions_under_the_address_sanitizer() -> None:
    done = soak("--seconds", "3", "--sanitize")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR: AddressSanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
    assert int(done.stdout.split()[0]) > 100, done.stdout


@pytest.mark.slow
def test_no_data_race_in_the_provider() -> None:
    done = race.run(2)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ThreadSanitizer" not in done.stderr
    assert int(done.stdout.split()[0]) > 50, done.stdout


def test_a_wrong_answer_is_noticed(tmp_path: Path) -> None:
    soak = Soak(tmp_path, 2, threads=2, sessions=1)
    soak.prepare()
    for _, known in soak.work:
        for _, answers in known:
            answers[0] = answers[0] + 1
    soak.run()
    assert soak.problems
    assert "other bits" in soak.problems[0]


def test_growing_memory_is_noticed() -> None:
    assert growth([100, 100, 101, 101, 102, 102, 103, 103, 104, 104]) == pytest.approx(0.04)
