"""The result as a table for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilegraph.bench.result import BenchResult, ModelTiming

if TYPE_CHECKING:  # a peer's own interpreter, which runs a worker of this package, may lack rich
    from rich.table import Table


def seconds(value: float) -> str:
    """A duration with three digits and a unit."""
    if math.isnan(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def megabytes(value: int) -> str:
    return f"{value / 1e6:.0f} MB" if value else "-"


def ratio(model: ModelTiming) -> str:
    """The ratio and its interval; 1.00 alone for the first model."""
    if model.ratio_low == model.ratio_high == 1.0:
        return "1.00"
    return f"{model.ratio:.2f} [{model.ratio_low:.2f}, {model.ratio_high:.2f}]"


def table(result: BenchResult) -> Table:
    """One row a model; ratios first, since they are what carries over to another day."""
    from rich.table import Table

    v = result.versions
    cpus = "not bound" if result.cpus is None else f"CPUs {', '.join(map(str, result.cpus))}"
    shapes = ", ".join(f"{k} {d}{list(s)}" for k, (d, s) in result.inputs.items())
    caption = "\n".join([f"{result.runs} rounds, {result.threads} thread(s), {cpus}",
                         f"ratio: first model's time / this one's, median of rounds, {result.coverage:.0%} interval",
                         f"onnxruntime {v['onnxruntime']}, tilegraph {v['tilegraph']}, python {v['python']}", shapes,
                         *result.notes])
    t = Table(title=v["cpu"], caption=caption, title_justify="left", caption_justify="left")
    for heading, justify in (("model", "left"), ("ratio", "right"), ("median", "right"), ("p10 - p90", "right"),
                             ("create", "right"), ("peak", "right"), ("provider", "left")):
        t.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for m in result.models:
        t.add_row(m.name, ratio(m), seconds(m.median_s), f"{seconds(m.p10_s)} - {seconds(m.p90_s)}",
                  seconds(m.create_s), megabytes(m.peak_bytes), m.provider.removesuffix("ExecutionProvider"))
    return t
