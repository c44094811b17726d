"""What a pass is: model -> PassResult, with a name and a context that collects decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from tilegraph.diagnostics import Diagnostics


@dataclass(frozen=True)
class PassResult:
    """`modified` is exact: True if and only if the model changed."""

    modified: bool


@dataclass
class PassContext:
    """What passes share: where decisions go, and limits that the user may set."""

    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    fold_limit_bytes: int = 1 << 20  # how much constant folding may add to the model
    sample: Mapping[str, Any] | None = None  # an example's inputs by name, for what is reported; it decides nothing


class Pass(ABC):
    """A transformation of the model in place. Subclasses set `name` (kebab-case, unique in a pipeline)."""

    name: str

    @abstractmethod
    def run(self, model: ir.Model, context: PassContext) -> PassResult: ...
