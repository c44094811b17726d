"""What `bench` returns: timings, paired ratios with intervals, session creation time, memory, versions."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tilegraph.bench.stats import Interval, median_interval, paired_ratios


@dataclass(frozen=True)
class ModelTiming:
    """Seconds per run of one peer over all rounds, and its ratio to the first peer.

    `ratio` is the median over rounds of (first peer's time / this one's): above 1, this one is faster. `ratio_low` and
    `ratio_high` bound that median with the result's `coverage`. `create_s` is the median of fresh session creations
    (NaN, in JSON null, if not measured). `peak_bytes` is the worker's VmHWM, `anon_bytes` its RssAnon after the last
    round, `base_bytes` its resident size before the session was created.
    """

    name: str
    path: str
    provider: str
    median_s: float
    p10_s: float
    p90_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    create_s: float
    peak_bytes: int
    anon_bytes: int
    base_bytes: int
    repeats: int  # runs inside one sample
    samples_s: tuple[float, ...]
    contended: int = 0  # samples during which other programs wanted the CPU

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "provider": self.provider, "median_s": self.median_s,
                "p10_s": self.p10_s, "p90_s": self.p90_s, "ratio": self.ratio, "ratio_low": self.ratio_low,
                "ratio_high": self.ratio_high, "peak_bytes": self.peak_bytes,
                "create_s": None if math.isnan(self.create_s) else self.create_s,
                "anon_bytes": self.anon_bytes, "base_bytes": self.base_bytes, "repeats": self.repeats,
                "samples_s": list(self.samples_s), "contended": self.contended}


@dataclass(frozen=True)
class BenchResult:
    """`cpus` are the CPUs that every worker was bound to, or None; `inputs` is name -> (dtype, shape)."""

    threads: int
    runs: int
    versions: dict[str, str]
    models: tuple[ModelTiming, ...]
    coverage: float
    cpus: tuple[int, ...] | None
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def versus(self, ours: int, other: int) -> Interval:
        """Round by round, model `other`'s time / model `ours`'s: above 1, `ours` is faster."""
        return median_interval(paired_ratios(self.models[other].samples_s, self.models[ours].samples_s))

    def best_but(self, ours: int, names: Collection[str] = ()) -> int:
        """The model that is fastest against the first one, model `ours` left out; with `names`, of the first and those.
        `ValueError` if there is no other."""
        others = [i for i in range(len(self.models)) if i != ours]
        return max((i for i in others if not i or not names or self.models[i].name in names),
                   key=lambda i: self.models[i].ratio)

    def to_json(self) -> dict[str, Any]:
        return {"threads": self.threads, "runs": self.runs, "versions": self.versions,
                "models": [m.to_json() for m in self.models], "coverage": self.coverage,
                "cpus": None if self.cpus is None else list(self.cpus),
                "inputs": {k: {"dtype": d, "shape": list(s)} for k, (d, s) in self.inputs.items()},
                "notes": list(self.notes)}
