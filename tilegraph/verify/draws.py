"""More draws of ONNX Runtime's own error, for an answer that is just out of the bound that one draw gives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tilegraph.verify.inputs import nudged, shrunk
from tilegraph.verify.ladder import Ladder
from tilegraph.verify.run import Feeds, ModelRun, RunFailure, Value, open_runner

WITHIN = 4.0  # times the bound: an answer further out is a fault, whatever ONNX Runtime's errors are
FEW = 16  # values, of which one draw says so little that ONNX Runtime may happen to have almost every bit right
WITHIN_FEW = 64.0
COUNT = 8
SECONDS = 30.0  # for all of them, the first excepted
Pair = tuple[list[Value], list[Value]]


@dataclass
class Draws:
    """What ONNX Runtime answers without optimizations, and in float64, where the inputs are moved: by their last bits,
    and every other time by up to 1 %, because erf(x) + 1 rounds alike for all neighbours of an x where erf is flat.

    Rounding errors of seven probabilities are few: of 60 runs of one model, half erred by less than 3.2e-7 and one by
    1.4e-6. Moved inputs are other inputs of the same kind, each with a float64 reference of its own, so that what is
    measured is ONNX Runtime's error and nothing else. Runs are made when they are asked for, and once.
    """

    path: Path
    samples: list[Feeds]
    threads: int | None
    limit: float  # seconds of onnx.reference for each
    _made: list[Pair] | None = field(default=None, init=False)

    def pairs(self) -> list[Pair]:
        """(ONNX Runtime's outputs, float64 outputs) of each draw, in the model's order; fewer where they take long,
        none where one of the two cannot run."""
        if self._made is None:
            started = time.monotonic()
            self._made = self._drawn(range(1)) if self.samples else []
            spent = time.monotonic() - started
            if self._made:
                self._made += self._drawn(range(1, min(COUNT, 1 + int(SECONDS / spent))))
        return self._made

    def _drawn(self, numbers: range) -> list[Pair]:
        feeds = [(shrunk if k % 2 else nudged)(self.samples[k % len(self.samples)], seed=1 + k) for k in numbers]
        exact = Ladder(self.path, threads=self.threads, limit=self.limit).run(list(feeds))
        found: list[Pair] = []
        try:
            runner = open_runner(ModelRun(str(self.path), threads=self.threads), isolate=False)
        except RunFailure:
            return found
        try:
            found += [(runner.run(moved), double[1]) for moved, double in zip(feeds, exact, strict=True) if double]
        except RunFailure:  # moved inputs need not be valid
            pass
        finally:
            runner.close()
        return found
