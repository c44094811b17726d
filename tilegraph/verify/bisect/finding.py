"""What a bisection found, in a form for people and for JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Finding:
    """`kind` says what is at fault:

    "none": every part that was looked at answers as its definition does. "folder": what was given is not what this
    version makes of the original. "pass", "kernel", "partition": `culprit` names it. "onnxruntime": ONNX Runtime's own
    optimizations of what is left to it. "unknown": the answers differ, but no part does by itself.

    `value` is the first value that differs, `nodes` those of the smallest subgraph found, `switches` the options of
    `tilegraph optimize` that were tried and give the right answers, the mildest first. `model`, `candidate` and
    `inputs` are the reproduction: `tilegraph verify MODEL CANDIDATE --inputs INPUTS` differs.
    """

    kind: str
    culprit: str = ""
    reason: str = ""
    value: str = ""
    nodes: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    model: Path | None = None
    candidate: Path | None = None
    inputs: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """What shows the fault again; "" without a reproduction."""
        if self.model is None or self.candidate is None or self.inputs is None:
            return ""
        return f"tilegraph verify {self.model} {self.candidate} --inputs {self.inputs}"

    def to_json(self) -> dict[str, Any]:
        files = {k: None if (path := getattr(self, k)) is None else str(path) for k in ("model", "candidate", "inputs")}
        return {"kind": self.kind, "culprit": self.culprit, "reason": self.reason, "value": self.value,
                "nodes": self.nodes, "switches": self.switches, **files, "command": self.command, "notes": self.notes}

    def lines(self) -> list[str]:
        """The finding as sentences, the verdict first."""
        found = [f"bisect: {self.kind}{f' {self.culprit}' if self.culprit else ''}: {self.reason}"]
        if self.value:
            found.append(f"first value that differs: {self.value}")
        if self.nodes:
            shown = ", ".join(self.nodes[:12]) + (f" and {len(self.nodes) - 12} more" if len(self.nodes) > 12 else "")
            found.append(f"smallest subgraph: {len(self.nodes)} nodes: {shown}")
        if self.switches:
            found.append(f"avoided by: {' or '.join(self.switches)}")
        if self.command:
            found.append(f"reproduce: {self.command}")
        return found + [f"note: {n}" for n in self.notes]
