"""Helpers for the tests of projects that use tilegraph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilegraph.verify import VerifyResult, verify


def assert_same_outputs(original: str | Path, optimized: str | Path, **options: Any) -> VerifyResult:
    """`verify` with its options; AssertionError that lists what differs, or that nothing was proved."""
    result = verify(original, optimized, **options)
    if not result.same:
        lines = [*result.problems, *([result.inconclusive] if result.inconclusive else [])]
        lines += [f"{o.of} output {o.name!r}: {'; '.join(o.notes)} (max_abs {o.max_abs:.3g}, bound {o.atol:.3g})"
                  for o in result.outputs if not o.same]
        raise AssertionError(f"{optimized} does not answer as {original}:\n  " + "\n  ".join(lines))
    return result
