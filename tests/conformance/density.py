"""How dense attentions are: what the report says of the corpus' models, and what ONNX Runtime computes.

`python -m tests.conformance.density [NAME ..]` prints a table: attentions found and stated, the density that the report
gives without and with the example's inputs, the share of softmax weights that ONNX Runtime has above 0 on these inputs
(none where no Softmax node is left to ask; masks after a softmax are not seen), and what CATALOG.csv states by hand.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tilegraph.compiler import optimize

CLOSE = 0.01


@dataclass(frozen=True)
class Row:
    """`density`, `measured`: means over the attentions that were taken; `seen`: ONNX Runtime's share, None: not known.
    """

    name: str
    stated: int
    stated_density: float | None
    mask: str
    found: int
    kinds: tuple[str, ...]
    density: float | None
    measured: float | None
    seen: float | None
    inputs: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def off(self) -> bool:
        """Whether the example's density is not what ONNX Runtime computes, or is not known."""
        if self.found != self.stated:
            return False  # softmaxes and attentions are not the same ones
        return self.measured is None or (self.seen is not None and abs(self.measured - self.seen) > CLOSE)


def rows(corpus: Path, names: list[str] | None = None) -> Iterator[Row]:
    """The models with attentions whose names begin with one of `names`."""
    with open(corpus / "CATALOG.csv", newline="") as file:
        for entry in csv.DictReader(file):
            if int(entry["attentions"] or 0) and (not names or entry["name"].startswith(tuple(names))):
                yield row(corpus, entry)


def row(corpus: Path, entry: dict[str, str]) -> Row:
    path = corpus / f"{entry['name']}.onnx"
    arrays = np.load(path.with_suffix(".npz"))
    feeds = {k.removeprefix("in_"): arrays[k] for k in arrays.files if k.startswith("in_")}
    attentions = optimize(path, offload="all", dry_run=True, sample=feeds).summary.attentions
    taken = [a for a in attentions if a["taken"]]
    given = [a["measured"] for a in taken if a["measured"] is not None]
    return Row(entry["name"], int(entry["attentions"]), float(entry["mask_density"] or "nan"), entry["mask_kind"],
               len(taken), tuple(dict.fromkeys(a["kind"] for a in taken)), _mean([a["density"] for a in taken]),
               _mean(given) if len(given) == len(taken) else None, seen(path, feeds),
               tuple(dict.fromkeys(n for a in taken for n in a["inputs"])),
               tuple(dict.fromkeys(a["reason"] for a in attentions if not a["taken"])))


def seen(path: Path, feeds: dict[str, Any]) -> float | None:
    """The share of weights above 0 that the Softmax nodes of the main graph give, by ONNX Runtime."""
    model = onnx.load(path)
    weights = [n.output[0] for n in model.graph.node if n.op_type == "Softmax"]
    if not weights:
        return None
    kept = [o.name for o in model.graph.output]
    model.graph.output.extend(onnx.ValueInfoProto(name=w) for w in weights if w not in kept)
    content = io.BytesIO()
    onnx.save(model, content)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(content.getvalue(), options, providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        made = session.run(weights, {k: v for k, v in feeds.items() if k in names})
    except Exception as error:  # some exports are none that it runs
        print(f"{path.stem}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None
    # Weights of two dims are those of a router that chooses among experts.
    return _mean([float((np.asarray(w, np.float32) > 0).mean()) for w in made if np.ndim(w) > 2])


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def main(names: list[str]) -> None:
    from tests.conftest import unpack_corpus

    missing = off = 0
    for one in rows(unpack_corpus(), names):
        numbers = ("-" if v is None else f"{v:.3f}" for v in (one.stated_density, one.density, one.measured, one.seen))
        print(f"{one.name:44} {one.found}/{one.stated} {'OFF ' if one.off else ''}{' '.join(numbers)} "
              f"{'+'.join(one.kinds)} [{one.mask}] {','.join(one.inputs)} {'; '.join(one.refused)[:200]}", flush=True)
        missing += max(one.stated - one.found, 0)
        off += one.off
    print(f"{missing} attentions not found; the measured density of {off} models is off by more than {CLOSE}")


if __name__ == "__main__":
    main(sys.argv[1:])
