"""Instruments: numbered dumps and checks after each pass."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from tilegraph.errors import InternalError
from tilegraph.io.bare import without_weights
from tilegraph.passes.base import Pass, PassResult
from tilegraph.passes.invariants import check_model


class DumpInstrument:
    """Writes `NN-pass-name.onnx` into `folder` after every pass that changed the model; NN counts the passes run.

    Large initializers appear as graph inputs of their type and shape, so a dump opens in any viewer and is small.
    """

    def __init__(self, folder: str | Path, *, all_passes: bool = False) -> None:
        self.folder = Path(folder)
        self.all_passes = all_passes
        self.folder.mkdir(parents=True, exist_ok=True)
        self.count = 0

    def after_pass(self, index: int, step: Pass, model: ir.Model, result: PassResult) -> None:
        if result.modified or self.all_passes:
            path = self.folder / f"{self.count:02d}-{step.name}.onnx"
            path.write_bytes(without_weights(model).SerializeToString(deterministic=True))
        self.count += 1


class CheckInstrument:
    """Runs `check_model` after every pass. Raises InternalError that names the pass."""

    def __init__(self, *, onnx_checker: bool = True) -> None:
        self.onnx_checker = onnx_checker

    def after_pass(self, index: int, step: Pass, model: ir.Model, result: PassResult) -> None:
        try:
            check_model(model, onnx_checker=self.onnx_checker)
        except InternalError as error:
            raise InternalError(f"after pass '{step.name}': {error}") from error
