"""Every decision about a model, from a dry run or from a folder's report."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegraph.errors import InputError
from tilegraph.spec.artifact import MANIFEST_FILE, REPORT_FILE
from tilegraph.spec.given import GivenDims


@dataclass(frozen=True)
class Explanation:
    """`report` holds the summary's JSON fields and `decisions`: a list of {stage, subject, op, taken, reason}."""

    report: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.report

    @property
    def decisions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.report.get("decisions", [])
        return found


def explain(model: str | Path, target: str = "cpu", *, dims: GivenDims | None = None, offload: str = "auto",
            disable: Collection[str] = (), mcpu: str | None = None, precision: str = "float32",
            weights: str = "float32", fast_winograd: bool = False, trust_hidden: bool = False,
            inputs: str | Path | Mapping[str, Any] | None = None, progress: Any = None) -> Explanation:
    """What tilegraph does, or did, with `model`: an .onnx file (optimized without writing anything) or a .tilegraph
    folder (its report.json). inputs: an .npz file or arrays by input name, on which the density of masks is measured
    as well. The others are those of `compiler.optimize`.

    Raises InputError for what is neither, for inputs that do not fit the model, and for options given with a folder.
    """
    path = Path(model)
    if path.is_dir():
        asked = {"target": target != "cpu", "dim": dims, "offload": offload != "auto", "disable": disable,
                 "mcpu": mcpu is not None, "precision": precision != "float32", "weights": weights != "float32",
                 "fast-winograd": fast_winograd, "trust-hidden": trust_hidden, "inputs": inputs is not None}
        if option := next((name for name, given in asked.items() if given), ""):
            raise InputError(f"{path}: --{option} changes nothing in a folder, whose report says what was decided when "
                             "it was made; give the .onnx file that it was made from")
        return Explanation(_from_folder(path))
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    from tilegraph.compiler import optimize

    sample = None
    if inputs is not None:
        from tilegraph.verify.arrays import given_arrays
        from tilegraph.verify.source import read_model

        graph = read_model(path).graph
        free = [v for v in graph.inputs if not v.is_initializer()]
        sample = given_arrays(inputs, free, [v.name or "" for v in graph.outputs])[0]
    result = optimize(path, target, dims=dims, offload=offload, disable=disable, mcpu=mcpu, precision=precision,
                      weights=weights, fast_winograd=fast_winograd, trust_hidden=trust_hidden, dry_run=True,
                      progress=progress, sample=sample)
    return Explanation(result.report())


def _from_folder(folder: Path) -> dict[str, Any]:
    if not (folder / MANIFEST_FILE).is_file():
        raise InputError(f"{folder}: not a tilegraph folder (it has no {MANIFEST_FILE})")
    path = folder / REPORT_FILE
    again = "make the folder again with `tilegraph optimize`"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{folder}: has no {REPORT_FILE}; {again}") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON ({error}); {again}") from error
    if not isinstance(report, dict) or not report:
        raise InputError(f"{path}: holds no report; {again}")
    return {"decisions": [], **report}
