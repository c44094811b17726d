"""Whether two models answer the same on one set of inputs, by the rules of `verify`, and how a model is optimized."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from tilegraph import io
from tilegraph.compiler import OptimizedModel, optimize
from tilegraph.errors import InputError, TilegraphError
from tilegraph.spec.artifact import REPORT_FILE
from tilegraph.spec.schedule import Schedule
from tilegraph.verify.api import verify
from tilegraph.verify.result import VerifyResult
from tilegraph.verify.run import Feeds

REFERENCE_LIMIT_S = 20.0


@dataclass(frozen=True)
class Options:
    """What `optimize` was told, as the folder's report has it. `schedules`: what `--tune` chose for composites."""

    target: str = "cpu"
    offload: str = "auto"
    disable: tuple[str, ...] = ()
    dims: dict[str, int | str] = field(default_factory=dict)
    mcpu: str | None = None
    precision: str = "float32"
    weights: str = "float32"
    fast_winograd: bool = False
    trust_hidden: bool = False
    schedules: dict[str, Schedule] = field(default_factory=dict)

    def optimize(self, model: Path | ir.Model) -> OptimizedModel:
        return optimize(model, self.target, dims=self.dims or None, offload=self.offload, disable=self.disable,
                        mcpu=self.mcpu, precision=self.precision, weights=self.weights,
                        fast_winograd=self.fast_winograd, trust_hidden=self.trust_hidden,
                        schedules=self.schedules)

    def without(self, *passes: str) -> Options:
        return replace(self, disable=tuple(dict.fromkeys((*self.disable, *passes))))

    @property
    def switches(self) -> str:
        """The options as they are typed; "" for the defaults."""
        said = [f"--offload {self.offload}"] if self.offload != "auto" else []
        said += [f"--disable {name}" for name in self.disable]
        said += [f"--dim {name}={size}" for name, size in self.dims.items()]
        said += [f"--mcpu {self.mcpu}"] if self.mcpu else []
        said += [f"--precision {self.precision}"] if self.precision != "float32" else []
        said += [f"--weights {self.weights}"] if self.weights != "float32" else []
        said += ["--fast-winograd"] if self.fast_winograd else []
        return " ".join(said + (["--trust-hidden"] if self.trust_hidden else []))


def options_of(folder: Path) -> Options | None:
    """The options in the folder's report; None if it has none."""
    try:
        report: Any = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        said = report["options"]
        return Options(str(report["target"]), str(said["offload"]), tuple(map(str, said["disable"])),
                       {str(k): v if isinstance(v, str) else int(v) for k, v in said["dims"].items()}, said["mcpu"],
                       str(said.get("precision", "float32")), str(said.get("weights", "float32")),
                       bool(said.get("fast_winograd", False)), bool(said.get("trust_hidden", False)),
                       {str(one["composite"]): Schedule(**one["schedule"]) for one in report.get("tuned", ())})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Oracle:
    """Compares on the same terms throughout one bisection; `work` takes the files."""

    def __init__(self, work: Path, *, threads: int | None, rtol: float | None, atol: float | None) -> None:
        self.work = work
        self.terms: dict[str, Any] = {"threads": threads, "rtol": rtol, "atol": atol,
                                      "reference_limit": REFERENCE_LIMIT_S}
        self.threads = threads
        self._numbers = itertools.count()

    def place(self, stem: str) -> Path:
        """A path in the working folder that nothing has used."""
        return self.work / f"{next(self._numbers):03d}-{stem}"

    def save(self, model: ir.Model, stem: str = "model") -> Path:
        folder = self.place(stem)
        folder.mkdir()
        path = folder / "model.onnx"
        io.save(model, path)
        return path

    def compare(self, original: Path, candidate: Path, feeds: Feeds, *, ort_optimizations: bool = True) -> VerifyResult:
        """Raises InputError where nothing can be compared."""
        return verify(original, candidate, inputs=_flat(feeds), ort_optimizations=ort_optimizations, **self.terms)

    def differs(self, original: Path, candidate: Path, feeds: Feeds) -> bool:
        """Whether the answers differ; a comparison that cannot be made shows no difference."""
        try:
            result = self.compare(original, candidate, feeds)
        except InputError:
            return False
        return not result.same and not result.inconclusive

    def differs_optimized(self, original: Path, options: Options, feeds: Feeds, *, keep: Path | None = None) -> bool:
        """Whether `original` differs from what `optimize` makes of it, which is kept as `keep`."""
        folder = keep or self.place("optimized.tilegraph")
        try:
            options.optimize(original).save(folder, force=True)
        except Exception:  # a piece that cannot be optimized is another fault than the one that is looked for
            return False
        return self.differs(original, folder, feeds)

    def first_switch(self, original: Path, options: Options, feeds: Feeds, passes: Collection[str]) -> list[str]:
        """The first options that make the answers right: each pass disabled alone, then nothing compiled."""
        attempts = [(f"--disable {name}", options.without(name)) for name in passes if name not in options.disable]
        attempts.append(("--offload none", replace(options, offload="none")))
        for said, changed in attempts:
            try:
                folder = self.place("switched.tilegraph")
                changed.optimize(original).save(folder)
                if self.compare(original, folder, feeds).same:
                    return [said]
            except TilegraphError:
                continue
        return []


def _flat(feeds: Feeds) -> dict[str, Any]:
    """Sequences spelled out, as given inputs have them."""
    flat: dict[str, Any] = {}
    for name, value in feeds.items():
        if isinstance(value, list):
            flat.update({f"{name}[{k}]": v for k, v in enumerate(value)})
        else:
            flat[name] = value
    return flat
