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
    """One thing done (`taken`) or refused, about `subject` (a node, region, value or partition name).

    `general`: the refusal says only that the stage has no use for such a node, so that any other word on it says more.
    """

    stage: str
    subject: str
    taken: bool
    reason: str
    op: str = ""
    data: dict[str, Any] = field(default_factory=dict, compare=False)
    general: bool = False


class Diagnostics:
    """An append-only list of decisions plus the time that each stage took (seconds)."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []
        self.seconds: dict[str, float] = {}

    def took(self, stage: str, subject: str, reason: str, *, op: str = "", **data: Any) -> None:
        self._decisions.append(Decision(stage, subject, True, reason, op, data))

    def refused(self, stage: str, subject: str, reason: str, *, op: str = "", general: bool = False,
                **data: Any) -> None:
        self._decisions.append(Decision(stage, subject, False, reason, op, data, general))

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def to_json(self) -> list[dict[str, Any]]:
        """Every decision as {stage, subject, op, taken, reason} and, where there is more, `data`."""
        return [{"stage": d.stage, "subject": d.subject, "op": d.op, "taken": d.taken, "reason": d.reason,
                 **({"data": d.data} if d.data else {})} for d in self]

    def refusals(self) -> list[Decision]:
        """The refusals that still hold at the end: of each stage its last word on a subject, and none on what it took
        later, by itself or as one of the `nodes` of a kernel. General ones hold where no other stage took the subject
        into a kernel later or had a reason of its own; the last of several."""
        held: dict[tuple[str, str], Decision] = {}
        general: dict[str, tuple[str, str]] = {}
        for number, decision in enumerate(self._decisions):
            if decision.taken:
                for name in (decision.subject, *decision.data.get("nodes", ())):
                    held.pop((decision.stage, name), None)
                for name in decision.data.get("nodes", ()):
                    held.pop(general.pop(name, ("", "")), None)
                continue
            key = decision.stage, decision.subject or f" {number}"  # what has no name is told apart
            if decision.general:
                held.pop(general.get(key[1], ("", "")), None)
                general[key[1]] = key
            elif general.get(key[1]) == key:
                del general[key[1]]
            held[key] = decision
        specific = {name for (_, name), decision in held.items() if not decision.general}
        return [d for (_, name), d in held.items() if not d.general or name not in specific]

    def of(self, stage: str, *, taken: bool | None = None) -> list[Decision]:
        return [d for d in self._decisions if d.stage == stage and (taken is None or d.taken == taken)]
