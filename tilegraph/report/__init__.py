"""Renders the JSON report of optimize and explain for people: Markdown or one HTML page."""

from __future__ import annotations

from typing import Any, Literal

from tilegraph.diagnostics.advice import advice

_TEMPLATES = {"markdown": "report.md.j2", "html": "report.html.j2"}


def render(report: dict[str, Any], form: Literal["markdown", "html"]) -> str:
    """`report` as docs/json.md describes it; fields that are absent leave their section out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("tilegraph.report"), undefined=StrictUndefined,
                              autoescape=form == "html", trim_blocks=True, lstrip_blocks=True,
                              keep_trailing_newline=True)
    environment.filters["cell"] = _cell
    environment.filters["bytes"] = _bytes
    environment.globals["advice"] = advice(report)
    filled = {"model": "?", "target": "?", "nodes_before": None, "nodes_after": None, "regions": None,
              "partitions": None, "engines": {}, "attentions": [], "layout_conversions": [], "refusals": [],
              "seconds": {}, "decisions": [], **report}
    return environment.get_template(_TEMPLATES[form]).render(filled)


def _cell(value: object) -> str:
    """Text that cannot break out of a Markdown table cell."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
