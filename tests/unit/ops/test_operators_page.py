"""docs/operators.md says what the operator table does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.unit.ops.test_vecmath import BOUNDS
from tilegraph.ops.pointwise import POINTWISE

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operators.md").read_text()
TOOL = runpy.run_path(str(ROOT / "tools" / "document_operators.py"))


def test_the_table_is_up_to_date() -> None:
    between = PAGE.split(TOOL["BEGIN"])[1].split(TOOL["END"])[0]
    assert between == TOOL["table"](), "run python tools/document_operators.py"


def test_the_table_names_every_operator() -> None:
    assert len(TOOL["table"]().splitlines()) == 2 + len(POINTWISE)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_stated_errors_are_the_tested_ones(name: str) -> None:
    bound = BOUNDS[name]
    assert f"| {name} | {bound.fused} | {bound.twice} |" in PAGE
