"""What the passes share that make composites: the user's choice of what to offload."""

from __future__ import annotations

from abc import abstractmethod

import onnx_ir as ir

from tilegraph.passes import Pass, PassContext, PassResult


class CompositePass(Pass):
    """`offload`: "auto" takes what is expected to win, "all" whatever can be taken, "none" nothing."""

    def __init__(self, offload: str = "auto") -> None:
        self.offload = offload

    def run(self, model: ir.Model, context: PassContext) -> PassResult:
        return PassResult(self.offload != "none" and self.fuse(model, context))

    @abstractmethod
    def fuse(self, model: ir.Model, context: PassContext) -> bool:
        """Makes the composites; whether there are any."""


def opsets_of(model: ir.Model) -> dict[str, int]:
    """The opset version of each domain that the model imports, "" for ONNX's own."""
    return {domain or "": version for domain, version in model.opset_imports.items()}
