"""Markdown and HTML reports."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, Literal

import pytest

from tilegraph.report import render

REPORT: dict[str, Any] = {
    "model": "a|b<script>.onnx", "target": "cpu", "nodes_before": 10, "nodes_after": 5, "regions": 2, "partitions": 1,
    "engines": {"tilegraph": 2, "onnxruntime": 3},
    "attentions": [{"name": "att", "taken": False, "kind": "dense", "density": 0.5, "reason": "short"},
                   {"name": "padded", "taken": True, "kind": "mask", "density": 1.0, "measured": 0.75,
                    "inputs": ["a|b", "ids"], "reason": "in one kernel"}],
    "layout_conversions": [{"value": "v", "bytes": 3 << 20, "reason": "NCHWc"}],
    "refusals": [{"node": "mm|1", "op": "MatMul", "reason": "two\nlines"}], "seconds": {"load": 0.5, "fuse": 1.25},
    "decisions": [{"stage": "fuse", "subject": "r0", "op": "", "taken": True, "reason": "a & b"},
                  {"stage": "fuse", "subject": "r1", "op": "", "taken": False, "reason": "refused here"}],
}


def rows(markdown: str) -> list[list[str]]:
    return [line.replace("\\|", "\0").strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]


def test_markdown_tables_keep_their_columns() -> None:
    text = render(REPORT, "markdown")
    width = 0
    for previous, row in zip([[""], *rows(text)], rows(text), strict=False):
        if set("".join(row)) <= {"-"}:
            width = len(previous)
        elif width and len(row) != width:
            width = 0  # a new table starts
            assert len(row) > 1
    assert "| mm\\|1 | MatMul | two lines |" in text
    assert "| v | 3.0 MiB | NCHWc |" in text
    assert "| att | no | dense | 0.5 |  |  | short |" in text
    assert "| padded | yes | mask | 1.0 | 0.75 | a\\|b, ids | in one kernel |" in text
    assert "| time | 1.75 s |" in text
    assert "<script>" not in text
    assert "\n\n\n" not in text


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def test_html_is_balanced_and_escaped() -> None:
    text = render(REPORT, "html")
    page = _Balance()
    page.feed(text)
    assert not page.open
    assert "<script>" not in text
    for cell in ("mm|1", "two\nlines", "3.0 MiB", "a & b", "att", "0.5"):
        assert cell in page.cells
    assert "refused here" not in page.cells  # refusals have their own table


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_open_sizes_get_advice(form: Literal["markdown", "html"]) -> None:
    assert "--dim" not in render(REPORT, form)
    refusal = {"stage": "fusion", "node": "r", "op": "Range", "reason": "the extent n is not known from the inputs"}
    assert "--dim total=past+seq" in render({**REPORT, "refusals": [refusal]}, form)
    taken = {"name": "att", "taken": True, "kind": "mask", "density": 1.0, "reason": "nothing is unknown"}
    assert "--dim" not in render({**REPORT, "attentions": [taken]}, form)
    left = {**taken, "taken": False, "reason": "a dim of x is unknown"}
    assert "--dim" in render({**REPORT, "attentions": [left]}, form)


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_absent_sections_are_left_out(form: Literal["markdown", "html"]) -> None:
    text = render({"model": "m", "target": "cpu", "nodes_before": 1, "nodes_after": 1}, form)
    for title in ("Attention", "Layout", "Refused", "Done"):
        assert title not in text
