"""Tables for people, drawn with rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from tilegraph.diagnostics.advice import advice

if TYPE_CHECKING:
    from rich.console import Console

    from tilegraph.verify import VerifyResult
    from tilegraph.verify.bisect import Finding


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns whose head starts with ">" are aligned to the right."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def _say(out: Console, text: str) -> None:
    """One line, never broken: it may be searched for."""
    out.print(text, markup=False, soft_wrap=True)


def show_summary(out: Console, report: dict[str, Any]) -> None:
    """The short summary of optimize."""
    engines = ", ".join(f"{nodes} {name}" for name, nodes in report.get("engines", {}).items())
    seconds = report.get("seconds", {})
    _say(out, f"{report.get('model', '?')} for {report.get('target', '?')}")
    _say(out, f"nodes {report.get('nodes_before')} -> {report.get('nodes_after')}, "
              f"regions {report.get('regions')}, partitions {report.get('partitions')}")
    if engines:
        _say(out, f"engines: {engines}")
    for weight in report.get("weights", []):
        _say(out, f"weights {weight['name']}: {weight['reason']}")
    if seconds:
        longest = sorted(seconds.items(), key=lambda s: -s[1])[:3]
        parts = ", ".join(f"{name} {s:.2f}" for name, s in longest)
        _say(out, f"time: {sum(seconds.values()):.2f} s ({parts})")


def show_decisions(out: Console, report: dict[str, Any]) -> None:
    """What was done, and last the refusals that still hold."""
    taken = [d for d in report.get("decisions", []) if d["taken"]]
    if taken:
        out.print(_table("\nDone", ("stage", "what", "op", "reason"),
                         ((d["stage"], d["subject"], d["op"], d["reason"]) for d in taken)))
    if report.get("attentions"):
        out.print(_table("\nAttention", ("name", "taken", "kind", ">density", ">measured", "less by", "reason"),
                         ((a["name"], "yes" if a["taken"] else "no", a["kind"], a["density"],
                           "" if a.get("measured") is None else a["measured"], ", ".join(a.get("inputs", [])),
                           a["reason"]) for a in report["attentions"])))
    if report.get("layout_conversions"):
        out.print(_table("\nLayout conversions", ("value", ">bytes", "reason"),
                         ((c["value"], c["bytes"], c["reason"]) for c in report["layout_conversions"])))
    if report.get("refusals"):
        out.print(_table("\nRefused", ("stage", "node", "op", "reason"),
                         ((r.get("stage", ""), r["node"], r["op"], r["reason"]) for r in report["refusals"])))
    if hint := advice(report):
        _say(out, f"\n{hint}")


def show_verification(out: Console, result: VerifyResult, *, verbose: bool) -> None:
    """The verdict, then one line per output, then what was found on the way."""
    rows = []
    for o in result.outputs:
        verdict = "DIFFERENT" if not o.same else "same" if o.proves else "proves nothing"
        bound = f"{o.atol:.3g}" + (f" + {o.rtol:.3g}*|ref|" if o.rtol else "")
        ort = "" if o.ort_error is None else f"{o.ort_error:.3g}"
        drift = "" if o.ort_drift is None else f"{o.ort_drift:.3g}"
        rows.append((o.name, o.of, verdict, f"{o.max_abs:.3g}", f"{o.max_rel:.3g}", bound, ort, drift, o.reference))
    columns = ("output", "of", "verdict", ">max abs", ">max rel", ">bound", ">ORT", ">ORT optimized", "reference")
    if rows:
        out.print(_table("", columns, rows))
    for problem in result.problems:
        _say(out, f"DIFFERENT: {problem}")
    for output in result.outputs:
        for note in output.notes:
            if not output.same or verbose or not output.proves or "tie" in note:
                _say(out, f"{output.of} {output.name}: {note}")
        if output.off_by_one:
            _say(out, f"{output.of} {output.name}: {output.off_by_one} of {output.elements} quantised values "
                      "are one step off")
    for note in result.notes:
        _say(out, f"note: {note}")
    if not result.inconclusive:
        _say(out, f"{'same' if result.same else 'different'} answers on {result.samples} samples (seed {result.seed})")


def show_finding(out: Console, finding: Finding) -> None:
    """What a bisection found."""
    for line in finding.lines():
        _say(out, line)
