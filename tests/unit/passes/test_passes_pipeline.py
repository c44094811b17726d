"""Pipelines run their passes once, in order, and can leave some out."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tilegraph.errors import UsageError
from tilegraph.passes import Pass, PassContext, PassResult, Pipeline


class Recorder(Pass):
    def __init__(self, name: str, log: list[str], modified: bool = False) -> None:
        self.name, self.log, self.modified = name, log, modified

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        self.log.append(self.name)
        return PassResult(self.modified)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, bool]] = []

    def after_pass(self, index: int, step: Pass, model: ir.Model, result: PassResult) -> None:
        self.seen.append((index, step.name, result.modified))


def empty_model() -> ir.Model:
    return ir.Model(ir.Graph([], [], nodes=[], name="g"), ir_version=10)


def test_order_results_times_and_instruments() -> None:
    log: list[str] = []
    watcher, context = Watcher(), PassContext()
    stages = [Recorder("a", log), Recorder("b", log, modified=True), Recorder("c", log)]
    assert Pipeline(stages, instruments=[watcher]).run(empty_model(), context).modified
    assert log == ["a", "b", "c"]
    assert watcher.seen == [(0, "a", False), (1, "b", True), (2, "c", False)]
    assert set(context.diagnostics.seconds) == {"a", "b", "c"}
    assert not Pipeline(stages[:1]).run(empty_model(), context).modified


def test_disabled_passes_do_not_run_and_are_said() -> None:
    log: list[str] = []
    context = PassContext()
    Pipeline([Recorder("a", log), Recorder("b", log)], disabled=["a"]).run(empty_model(), context)
    assert log == ["b"]
    (decision,) = context.diagnostics.of("pass", taken=False)
    assert (decision.subject, decision.reason) == ("a", "disabled by the user")


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"no pass named nope, typo; --list-passes"):
        Pipeline([Recorder("a", [])], disabled=["typo", "nope", "a"])
