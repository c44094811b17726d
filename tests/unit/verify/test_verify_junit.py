"""JUnit XML as CI servers read it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tilegraph.verify.bisect import Finding
from tilegraph.verify.junit import junit_xml
from tilegraph.verify.result import OutputResult, VerifyResult


def suite(result: VerifyResult, finding: Finding | None = None) -> ET.Element:
    top = ET.fromstring(junit_xml(result, finding).encode())
    assert top.tag == "testsuites"
    (found,) = top
    return found


def test_every_output_is_a_case() -> None:
    result = VerifyResult("a.onnx", "b.tilegraph", [
        OutputResult("y", "optimized"),
        OutputResult("z", "optimized", same=False, notes=["3 out of bounds"], max_abs=0.5),
        OutputResult("c", "portable", proves=False, notes=["its reference is constant"])], notes=["a note"])
    found = suite(result)
    assert {k: found.get(k) for k in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3", "failures": "1", "skipped": "1", "errors": "0"}
    cases = {c.get("name"): c for c in found.iter("testcase")}
    assert list(cases["y"]) == []
    (failure,) = cases["z"]
    assert failure.tag == "failure"
    assert failure.get("message") == "3 out of bounds"
    assert "max abs 0.5" in (failure.text or "")
    assert cases["c"][0].tag == "skipped"
    assert cases["c"].get("classname") == "b.tilegraph.portable"
    assert found.findtext("system-out") == "a note"


def test_problems_and_proving_nothing_are_not_successes() -> None:
    problem = "the optimized model cannot be loaded: <&\x00\x1b[0m>"
    result = VerifyResult("a", "b", [], [problem], inconclusive="nothing")
    found = suite(result)
    assert (found.get("failures"), found.get("errors")) == ("1", "1")
    failure = next(found.iter("failure"))
    assert failure.get("message") == "the optimized model cannot be loaded: <&??[0m>"


def test_a_bisection_is_told() -> None:
    found = suite(VerifyResult("a", "b", [OutputResult("y", "optimized", same=False)]),
                  Finding("pass", "fold", "it is wrong", switches=["--disable fold"]))
    assert "avoided by: --disable fold" in (found.findtext("system-out") or "")
