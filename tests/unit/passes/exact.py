"""What holds for every run of every pass."""

from __future__ import annotations

import onnx_ir as ir

from tilegraph.passes import Pass, PassContext
from tilegraph.passes.invariants import check_model


def run_exactly(step: Pass, model: ir.Model, context: PassContext | None = None) -> bool:
    """Runs `step` and returns its `modified`, which is exact; the model is consistent, and a second run changes
    nothing."""
    context = context or PassContext()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    modified = step.run(model, context).modified
    assert (ir.to_proto(model).SerializeToString(deterministic=True) != before) is modified
    check_model(model)
    assert not step.run(model, PassContext(fold_limit_bytes=context.fold_limit_bytes)).modified
    return modified
