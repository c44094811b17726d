"""What tilegraph did and did not do, and why.

Every pass, the partitioner and the emitter record `Decision`s; `tilegraph explain` prints them and the report
shows them. A refusal always names the node (or value) and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Decision:
    """One thing done (`taken`) or refused, about `subject` (a node, region, value or partition name)."""

    stage: str
    subject: str
    taken: bool
    reason: str
    op: str = ""
    data: dict[str, Any] = field(default_factory=dict, compare=False)


class Diagnostics:
    """An append-only list of decisions plus the time that each stage took (seconds)."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []
        self.seconds: dict[str, float] = {}

    def took(self, stage: str, subject: str, reason: str, *, op: str = "", **data: Any) -> None:
        self._decisions.append(Decision(stage, subject, True, reason, op, data))

    def refused(self, stage: str, subject: str, reason: str, *, op: str = "", **data: Any) -> None:
        self._decisions.append(Decision(stage, subject, False, reason, op, data))

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def to_json(self) -> list[dict[str, Any]]:
        """Every decision as {stage, subject, op, taken, reason} and, where there is more, `data`."""
        return [{"stage": d.stage, "subject": d.subject, "op": d.op, "taken": d.taken, "reason": d.reason,
                 **({"data": d.data} if d.data else {})} for d in self]

    def refusals(self) -> list[Decision]:
        """The refusals that still hold at the end: of each stage its last word on a subject, and none on what it took
        later, by itself or as one of the `nodes` of a kernel."""
        held: dict[tuple[str, str], Decision] = {}
        for number, decision in enumerate(self._decisions):
            if not decision.taken:
                held[decision.stage, decision.subject or f" {number}"] = decision  # what has no name is told apart
                continue
            for name in (decision.subject, *decision.data.get("nodes", ())):
                held.pop((decision.stage, name), None)
        return list(held.values())

    def of(self, stage: str, *, taken: bool | None = None) -> list[Decision]:
        return [d for d in self._decisions if d.stage == stage and (taken is None or d.taken == taken)]
