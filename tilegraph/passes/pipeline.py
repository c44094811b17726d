"""Ordered passes, with instruments that observe them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Protocol

import onnx_ir as ir

from tilegraph.errors import UsageError
from tilegraph.passes.base import Pass, PassContext, PassResult


class Instrument(Protocol):
    """Observes passes; must not change the model."""

    def after_pass(self, index: int, step: Pass, model: ir.Model, result: PassResult) -> None: ...


class Pipeline:
    """Runs its passes once, in order, skipping the disabled ones."""

    def __init__(self, stages: Sequence[Pass], *, disabled: Collection[str] = (),
                 instruments: Sequence[Instrument] = ()) -> None:
        self.stages = tuple(stages)
        self.instruments = tuple(instruments)
        names = [p.name for p in stages]
        unknown = sorted(set(disabled) - set(names))
        if unknown:
            raise UsageError(f"--disable: no pass named {', '.join(unknown)}; --list-passes prints the names")
        self.disabled = frozenset(disabled)

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        modified = False
        for index, step in enumerate(self.stages):
            if step.name in self.disabled:
                context.diagnostics.refused("pass", step.name, "disabled by the user")
                continue
            start = time.perf_counter()
            result = step.run(model, context)
            seconds = context.diagnostics.seconds
            seconds[step.name] = seconds.get(step.name, 0.0) + time.perf_counter() - start
            modified |= result.modified
            for instrument in self.instruments:
                instrument.after_pass(index, step, model, result)
        return PassResult(modified)
