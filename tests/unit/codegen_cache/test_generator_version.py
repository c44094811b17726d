"""The generator's version in cache keys follows the sources that decide a kernel's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilegraph.codegen import version


def test_it_covers_lowering_planning_and_emission() -> None:
    names = {path.relative_to(path.parents[-2]).as_posix().rpartition("tilegraph/")[2] for path in version._sources()}
    assert {"codegen/rows/kernel.py", "codegen/schedule.py", "ops/space.py", "ops/region.py",
            "ops/vecmath/exponential.py", "ops/lower/views.py", "spec/dims.py"} <= names


def test_it_changes_with_a_source_and_with_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.py"
    source.write_text("x = 1\n")
    monkeypatch.setattr(version, "_sources", lambda: [source])
    first = version._digest()
    assert version._digest() == first
    source.write_text("x = 2\n")
    assert version._digest() != first
