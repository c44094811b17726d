"""The result of `verify` as JUnit XML, which CI servers show: one test case for each output of each compared model."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from tilegraph.verify.result import OutputResult, VerifyResult

if TYPE_CHECKING:
    from tilegraph.verify.bisect import Finding


def junit_xml(result: VerifyResult, finding: Finding | None = None) -> str:
    """A different output, and each problem of a model as a whole, is a failure; an output that proves nothing is
    skipped; where nothing was proved at all that is an error. What a bisection found is in the suite's output."""
    suite = ET.Element("testsuite", name="tilegraph verify", hostname="localhost")
    counts = {"tests": 0, "failures": 0, "skipped": 0, "errors": 0}

    def case(name: str, of: str, kind: str = "", message: str = "", text: str = "") -> None:
        node = ET.SubElement(suite, "testcase", classname=f"{result.optimized}.{of}", name=name)
        counts["tests"] += 1
        if kind:
            counts[{"failure": "failures", "error": "errors"}.get(kind, kind)] += 1
            found = ET.SubElement(node, kind, message=_clean(message))
            found.text = _clean(text)

    for output in result.outputs:
        if not output.same:
            case(output.name, output.of, "failure", "; ".join(output.notes) or "different", _numbers(output))
        elif not output.proves:
            case(output.name, output.of, "skipped", "; ".join(output.notes))
        else:
            case(output.name, output.of)
    for index, problem in enumerate(result.problems):
        case(f"model ({index + 1})", "whole", "failure", problem, problem)
    if result.inconclusive:
        case("something is proved", "whole", "error", result.inconclusive, result.inconclusive)
    for name, value in counts.items():
        suite.set(name, str(value))
    lines = [*result.notes, *(finding.lines() if finding is not None else [])]
    if lines:
        ET.SubElement(suite, "system-out").text = _clean("\n".join(lines))
    top = ET.Element("testsuites")
    top.append(suite)
    ET.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


def _numbers(output: OutputResult) -> str:
    bound = f"{output.atol:.3g}" + (f" + {output.rtol:.3g} * |reference|" if output.rtol else "")
    return f"max abs {output.max_abs:.3g}, max rel {output.max_rel:.3g}, bound {bound}, reference {output.reference}"


def _clean(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold."""
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "?"
                   for c in text)
