"""A short run of tests/ep/attack.py under the sanitizers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.ep.soak import ROOT


@pytest.mark.slow
def test_random_attributes_and_manifests_end_in_a_status() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.ep.attack", "--examples", "80", "--sanitize"], cwd=ROOT,
                          capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts["refused by the provider"] > 20, counts
    assert counts["served"] + counts["ran"] > 3, counts
