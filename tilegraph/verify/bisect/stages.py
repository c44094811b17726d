"""The model after each pass, and the first of them that answers otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from tilegraph import io, targets
from tilegraph.passes import Pass, PassContext, PassResult, Pipeline
from tilegraph.verify.bisect.oracle import Options, Oracle
from tilegraph.verify.run import Feeds


@dataclass(frozen=True)
class Stage:
    """The model after the pass `name`; "" is the model as loaded."""

    name: str
    model: ir.Model


class _Snapshots:
    def __init__(self) -> None:
        self.stages: list[Stage] = []

    def after_pass(self, index: int, step: Pass, model: ir.Model, result: PassResult) -> None:
        if result.modified:
            self.stages.append(Stage(step.name, model.clone()))


def stages(original: Path, options: Options) -> list[Stage]:
    """The model as loaded and after every pass that changed it."""
    model = io.load(original, dims=options.dims or None)
    seen = _Snapshots()
    seen.stages.append(Stage("", model.clone()))
    target = targets.get(options.target)
    passes = target.passes(targets.CompilerOptions(options.offload, target.isa(options.mcpu), options.precision,
                                                   options.weights, options.fast_winograd, options.trust_hidden))
    Pipeline(passes, disabled=options.disable, instruments=[seen]).run(model, PassContext())
    return seen.stages


def first_wrong(original: Path, found: list[Stage], oracle: Oracle, feeds: Feeds) -> int | None:
    """The place of a stage that differs from the original while the one before it does not; None if the last one is
    right. Raises TilegraphError as `verify` does."""
    def wrong(at: int) -> bool:
        return oracle.differs(original, oracle.save(found[at].model, found[at].name or "loaded"), feeds)

    if not wrong(len(found) - 1):
        return None
    low, high = -1, len(found) - 1  # the stage `high` is wrong; -1 stands for the original itself
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(middle) else (middle, high)
    return high
