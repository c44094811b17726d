"""What a reader of the refusals can do about many of them at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OPEN = (" is unknown", "is not known from the inputs", "not equal for certain", "symbolic extent")
SIZES = ("Some of the reasons are sizes that the model leaves open: --dim seq=128 fixes one, --dim total=past+seq says "
         "that one follows from others, --dim height=32*h that it is a multiple.")


def advice(report: Mapping[str, Any]) -> str:
    """A sentence on the refusals and attentions of a report (docs/json.md) that stay for open sizes, or ""."""
    left = [*report.get("refusals", ()), *(a for a in report.get("attentions", ()) if not a["taken"])]
    return SIZES if any(words in one["reason"] for one in left for words in _OPEN) else ""
