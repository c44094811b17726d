"""docs/operators.md says what the operator table does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import defs

from models.report import between_markers
from tests.unit.ops.test_vecmath import BOUNDS
from tilegraph.ops.conv import WINDOWS
from tilegraph.ops.lower.tables import COMPOSED, GENERATORS, REDUCTIONS, VIEWS
from tilegraph.ops.pointwise import POINTWISE
from tilegraph.rewrites.normalise.functions import EXPANDED
from tools.document_operators import MARKERS, table

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operators.md").read_text()


def test_the_table_is_up_to_date() -> None:
    assert between_markers(PAGE, table(), MARKERS) == PAGE, "run python -m tools.document_operators"


def test_the_table_names_every_operator() -> None:
    assert len(table().splitlines()) == 2 + len(POINTWISE)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_stated_errors_are_the_tested_ones(name: str) -> None:
    bound = BOUNDS[name]
    assert f"| {name} | {bound.fused} | {bound.twice} |" in PAGE


PRODUCTS = {"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul", "Attention", "FlexAttention"}  # other pages


def test_every_operator_of_onnx_has_a_kernel_or_a_stated_reason() -> None:
    ours = {name for domain, name in (*POINTWISE, *REDUCTIONS, *GENERATORS, *COMPOSED, *WINDOWS) if domain == ""}
    ours |= {*VIEWS, *EXPANDED, *PRODUCTS}
    reasons = PAGE.split("## Operators without kernels, and why")[1].split("\n## ")[0]
    stated = {word for line in reasons.splitlines() if line.startswith("| ")
              for word in re.findall(r"\w+", line.split("|")[1])}
    latest = {s.name: s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    silent = sorted(latest.keys() - ours - stated)
    assert not silent, f"neither a kernel nor a reason in docs/operators.md: {silent}"
    assert len(latest) > 190
    partly = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"}  # some forms have kernels
    assert (stated & latest.keys() & ours) <= partly
