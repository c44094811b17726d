"""What a run of fuzzing checks: a model, and the inputs that it is run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from tests.fuzz.values import Array


@dataclass(frozen=True)
class Subject:
    """`other(draw)`: inputs of other sizes, or {}."""

    model: onnx.ModelProto
    feeds: dict[str, Array]
    other: Callable[[int], dict[str, Array]]
