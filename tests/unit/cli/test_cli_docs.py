"""docs/json.md lists every field that is written; what documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from tilegraph.cli.app import app
from tilegraph.verify.bisect import Finding
from tilegraph.verify.result import OutputResult, VerifyResult

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# A file in backticks (of the repository, the package, or a folder that the page is about), a link, a folder.
NAMED = re.compile(r"`([\w./*-]+\.(?:py|cc|h|md|sh|yml|toml|txt))`|\]\(([^)#:]+\.md)[^)]*\)|"
                   r"`((?:tilegraph|rewrites|codegen|runtime|models|tests|tools|docs)/[\w./-]*)`")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_options_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for found in NAMED.finditer(text):
        name = next(n for n in found.groups() if n)
        assert any(list(top.glob(pattern)) for top in (ROOT, ROOT / "tilegraph", page.parent)
                   for pattern in (name, f"*/{name}", f"*/*/{name}")), f"{page.name} names {name}"
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for line in re.findall(r"^(?:    |.*`)tilegraph ([a-z-]+ .*?)(?:`|#|$)", text, flags=re.MULTILINE):
        known = {o for p in commands[line.split()[0]].params for o in p.opts} | {"--help"}
        assert set(re.findall(r"--[a-z][a-z0-9-]*", line)) <= known, f"{page.name} says tilegraph {line}"
