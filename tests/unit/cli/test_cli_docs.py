"""docs/json.md lists every field that is written."""

from __future__ import annotations

import re
from pathlib import Path

from tilegraph.verify.bisect import Finding
from tilegraph.verify.result import OutputResult, VerifyResult

TEXT = (Path(__file__).parents[3] / "docs" / "json.md").read_text(encoding="utf-8")


def documented(section: str) -> set[str]:
    part = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    body = next(p for p in part if p.startswith(section + "\n") or p.startswith(section + ","))
    return {n for row in re.findall(r"^\| (`.*?) \|", body, flags=re.MULTILINE) for n in re.findall(r"`(\w+)`", row)}


def test_verify_s_fields_are_documented_and_no_others() -> None:
    result = VerifyResult("a", "b", [OutputResult("y", "optimized", max_abs=float("nan"))])
    data = result.to_json()
    assert data["outputs"][0]["max_abs"] is None
    assert documented("verify") == set(data) | set(data["outputs"][0])


def test_the_fields_of_a_bisection_are_documented_and_no_others() -> None:
    assert documented("verify --bisect") == set(Finding("none").to_json())


def test_the_promised_fields_are_documented() -> None:
    assert documented("optimize") >= {"model", "target", "nodes_before", "nodes_after", "regions", "partitions",
                                      "engines", "attentions", "layout_conversions", "refusals", "seconds"}
    assert documented("bench") >= {"threads", "versions", "models"}
