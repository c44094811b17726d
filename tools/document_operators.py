"""Writes the table of docs/operators.md from the operator table; a test compares the two.

python -m tools.document_operators            # rewrites the part between the markers
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from models.report import between_markers
from tilegraph.ops.pointwise import CONSTANTS, POINTWISE, PointOp
from tilegraph.ops.pointwise.base import EVERY, INTEGERS, LIBM, SIGNED, UNSIGNED, VARIADIC

PAGE = Path(__file__).parents[1] / "docs" / "operators.md"
MARKERS = "operators"

# Attributes with which every operator accepts the dtypes that it can handle at all.
AGREEABLE: dict[str, Any] = {"to": 1, "direction": "LEFT", "fmod": 1, CONSTANTS: {1: 2}}


def operand_dtypes(op: PointOp, count: int) -> list[list[str]]:
    """For each of `count` operands the dtypes that it can have, the others chosen to suit."""
    found: list[list[str]] = [[] for _ in range(count)]
    for dtypes in itertools.product(EVERY, repeat=count):
        if op.accepts(dtypes, AGREEABLE, 21) is None:
            for seen, dtype in zip(found, dtypes, strict=True):
                if dtype not in seen:
                    seen.append(dtype)
    return [[d for d in EVERY if d in seen] for seen in found]


def short(dtypes: list[str]) -> str:
    """`int8, int16, int32, int64` as `signed`, and so on."""
    left = list(dtypes)
    words = []
    if set(EVERY) <= set(left):
        return "all"
    for name, group in (("integers", INTEGERS), ("signed", SIGNED), ("unsigned", UNSIGNED)):
        if set(group) <= set(left):
            words.append(name)
            left = [d for d in left if d not in group]
    return ", ".join([*left, *words])


def shown_dtypes(op: PointOp) -> str:
    count = max(op.arity[0], 1) if op.arity[1] == VARIADIC else op.arity[1]
    columns = [short(dtypes) for dtypes in operand_dtypes(op, count)]
    return columns[0] if len(set(columns)) == 1 else "; ".join(columns)


def row(op: PointOp) -> str:
    low, high = op.arity
    inputs = f"{low}" if low == high else f"{low}+" if high == VARIADIC else f"{low}-{high}"
    domain = f"{op.domain}." if op.domain else ""
    declines = (op.check.__doc__ or "").strip().splitlines()[0] if op.check else ""
    cost = "libm" if op.cost == LIBM else str(op.cost)
    return f"| {domain}{op.name} | {op.since} | {inputs} | {shown_dtypes(op)} | {cost} | {declines} |"


def table() -> str:
    header = ["| operator | opsets | inputs | dtypes | cost | declines |", "|---|---|---|---|---|---|"]
    return "\n".join([*header, *(row(POINTWISE[key]) for key in sorted(POINTWISE))])


def main() -> None:
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), table(), MARKERS), encoding="utf-8")


if __name__ == "__main__":
    main()
