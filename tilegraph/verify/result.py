"""What verify found: per output and as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class OutputResult:
    """One output of one compared model over all samples.

    `error <= max(atol + rtol * |reference|)` is what was required of finite values. `proves` is False when equal
    values say nothing (a constant or empty reference). Errors are absolute, in the output's unit; NaN means that
    nothing finite was compared.
    """

    name: str
    of: str  # "optimized" or "portable"
    same: bool = True
    max_abs: float = 0.0
    max_rel: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    reference: str = ""
    ort_error: float | None = None  # ORT without optimizations against the reference
    ort_drift: float | None = None  # ORT with all optimizations against the reference
    requested_error: float | None = None  # of the lower precision that was asked for, in ORT against the reference
    off_by_one: int = 0  # quantised elements that are one step off
    elements: int = 0
    proves: bool = True
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "of": self.of, "same": self.same, "max_abs": finite(self.max_abs),
                "max_rel": finite(self.max_rel), "rtol": self.rtol, "atol": finite(self.atol),
                "reference": self.reference, "ort_error": finite(self.ort_error), "ort_drift": finite(self.ort_drift),
                "requested_error": finite(self.requested_error), "off_by_one": self.off_by_one,
                "elements": self.elements, "proves": self.proves, "note": "; ".join(self.notes)}


@dataclass
class VerifyResult:
    """`same` is True only if something was compared, everything agreed, and at least one comparison proves it.

    `inconclusive` is the reason when nothing proves anything (the command line then exits with 2). `feeds` are the
    inputs of each sample that the original answers, by name.
    """

    original: str
    optimized: str
    outputs: list[OutputResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # about the optimized model as a whole
    notes: list[str] = field(default_factory=list)
    samples: int = 0
    seed: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    inconclusive: str = ""
    feeds: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def same(self) -> bool:
        compared = bool(self.outputs) and not self.problems
        return compared and all(o.same for o in self.outputs) and any(o.proves for o in self.outputs)

    @property
    def reference(self) -> str:
        """The references that were used, each once, in order of the outputs."""
        return "; ".join(dict.fromkeys(o.reference for o in self.outputs if o.reference))

    def to_json(self) -> dict[str, Any]:
        return {"same": self.same, "outputs": [o.to_json() for o in self.outputs], "reference": self.reference,
                "problems": self.problems, "notes": self.notes, "inconclusive": self.inconclusive,
                "original": self.original, "optimized": self.optimized, "samples": self.samples,
                "seed": self.seed, "versions": self.versions}


def finite(number: float | None) -> float | None:
    """JSON has no NaN and no infinity: null stands for both."""
    return number if number is not None and math.isfinite(number) else None
