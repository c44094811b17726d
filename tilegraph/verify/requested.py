"""Lower precision that the user asked for: what the folder promises to compute, as a model that any ONNX Runtime runs.

The rewritten model says in standard ONNX which values are rounded to what; for `--fast-winograd` its convolutions are
written as that algorithm computes them. Its error in ONNX Runtime is the error that
was asked for, so it takes the place of ONNX Runtime's own error on the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilegraph.errors import TilegraphError
from tilegraph.verify.ladder import write
from tilegraph.verify.source import made_with

FLOAT32 = "float32"


@dataclass(frozen=True)
class Requested:
    """`what` was asked for; `path`: the model that says so, None with the `reason` why there is none."""

    what: str
    path: Path | None
    reason: str = ""


def requested(original: Path, optimized: str | Path, folder: Path) -> Requested | None:
    """What the folder `optimized` was made for, if its precision is lower than the original's; files go to `folder`.

    The model is made again from the original, so that nothing in `optimized` excuses its own errors.
    """
    said = made_with(optimized)
    precision, weights = (str(said.get(option, FLOAT32)) for option in ("precision", "weights"))
    asked = [f"{name} {value}" for name, value in (("precision", precision), ("weights", weights)) if value != FLOAT32]
    fast = bool(said.get("fast_winograd", False))
    asked += ["fast-winograd"] if fast else []
    if not asked:
        return None
    # Here, because children that only run a model must start fast.
    from tilegraph.compiler import optimize
    from tilegraph.verify.winograd import as_computed

    what = ", ".join(asked)
    try:
        made = optimize(original, dims=said.get("dims"), offload=str(said.get("offload", "auto")),
                        disable=said.get("disable", ()), mcpu=said.get("mcpu"), precision=precision, weights=weights,
                        fast_winograd=fast, dry_run=True)
        as_computed(made.portable)
        return Requested(what, Path(write(made.portable, folder / "requested.onnx")))
    except TilegraphError as problem:
        return Requested(what, None, str(problem))
