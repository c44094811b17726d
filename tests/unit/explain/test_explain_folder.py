"""Explaining a folder from its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tilegraph
from tilegraph.errors import InputError
from tilegraph.explain import explain


def test_a_folder_s_report(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "report.json").write_text(json.dumps({"model": "m", "regions": 3}))
    found = explain(tmp_path)
    assert found.to_json() == {"model": "m", "regions": 3, "decisions": []}
    assert tilegraph.explain(tmp_path).decisions == []
    options: list[tuple[str, Any]] = [("dims", {"n": 1}), ("offload", "none"), ("disable", ["fuse"]),
                                      ("trust_hidden", True), ("inputs", {})]
    for name, given in options:
        with pytest.raises(InputError, match="changes nothing in a folder"):
            explain(tmp_path, **{name: given})


@pytest.mark.parametrize(("content", "told"), [
    (None, "has no report.json"), ("{", "not readable as JSON"), ("[]", "holds no report"), ("{}", "holds no report"),
])
def test_folders_without_a_report(tmp_path: Path, content: str | None, told: str) -> None:
    with pytest.raises(InputError, match="not a tilegraph folder"):
        explain(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match=told):
        explain(tmp_path)


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        explain(tmp_path / "x")
