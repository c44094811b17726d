"""Originals with steps of optimizers (ai.onnx.preview.training), for which ONNX Runtime has no kernels: written out."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from tilegraph.verify.ladder import write

DOMAIN = "ai.onnx.preview.training"


def as_ort_runs(model: ir.Model, original: Path, folder: Path) -> tuple[Path, list[str]]:
    """The path of a model that ONNX Runtime can run, and a note where it is not `original` itself.

    The steps in `model`, which was read from `original` and is changed then, become the standard operators that ONNX's
    pseudo code names; the file goes to `folder`. tests/numeric holds these to onnx.reference.
    """
    steps = sorted({n.op_type for n in model.graph.all_nodes() if n.domain == DOMAIN})
    if not steps:
        return original, []
    # Here, because children that only run a model must start fast.
    from tilegraph.passes import PassContext
    from tilegraph.rewrites.normalise import ExpandFunctions

    ExpandFunctions().run(model, PassContext())
    return Path(write(model, folder / "written.onnx")), [
        f"ONNX Runtime has no kernels for {', '.join(steps)}: the original is compared with these written out"]
