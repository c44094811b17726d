"""CPU choice and what the machine tells about itself."""

from __future__ import annotations

import os

import pytest

from tilegraph.bench import machine


def test_versions_name_the_cpu_and_the_runtimes() -> None:
    found = machine.versions()
    assert set(found) == {"cpu", "python", "tilegraph", "onnxruntime"}
    assert found["cpu"]


def test_different_cores_are_preferred_and_high_numbers_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "_core", lambda cpu: str(cpu // 2))  # pairs of hardware threads
    assert machine.choose_cpus(1) == [7]
    assert machine.choose_cpus(2) == [5, 7]
    assert machine.choose_cpus(5) == [1, 3, 5, 6, 7]
    assert machine.choose_cpus(9) is None


def test_memory_is_counted_in_bytes() -> None:
    before = machine.memory()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    grown = machine.memory()["anonymous"] - before["anonymous"]
    assert 50 << 20 < grown < 90 << 20
    assert machine.memory("no such process") == {"peak": 0, "anonymous": 0, "resident": 0}
