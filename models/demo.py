"""`make demo`: optimizes a handful of real models, serves them through ONNX Runtime, checks the answers, times them."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
from rich.console import Console

from models import report
from models.cases import Case, cases
from models.pipeline import OUT, Outcome, run_case
from models.zoo import zoo

REAL = ("ppocr_rec", "ppocr_cls", "silero_vad_sequence", "magika", "minilm_l3")
BUILT = ("bert_128", "llama_dynamic")
CHAINS = ("tanh_gelu_pow", "bias_res_layernorm", "rope_qk")
RUNS = 12


def chosen() -> list[Case]:
    """Real models that are installed, then layers with random weights, then single chains."""
    return [case for group, names in (("zoo", REAL), ("built", BUILT), ("chains", CHAINS))
            for case in cases(group) if case.name in names]


def main() -> int:
    start = time.perf_counter()
    err = Console(stderr=True)
    outcomes: list[Outcome] = []
    for case in chosen():
        with err.status(f"{case.name}: optimize, verify, time"):
            outcome = run_case(case, threads=(1,), runs=RUNS)
        outcomes.append(outcome)
        err.print(f"{case.name}: {outcome.verdict}" + "".join(f"; {p}" for p in outcome.problems), markup=False,
                  soft_wrap=True)
    Console(width=None if sys.stdout.isatty() else 180).print(report.terminal(outcomes, (1,), "tilegraph demo"))
    text = read_text() if any(o.case.name == "ppocr_rec" and o.same for o in outcomes) else None
    if text is not None:
        print(f"The optimized recogniser, served by ONNX Runtime's plugin provider, reads the drawn line as {text!r}.")
    print(f"{sum(o.same is True for o in outcomes)} of {len(outcomes)} models give the same answers; "
          f"{time.perf_counter() - start:.0f} s. Folders: {OUT}")
    return int(any(o.verdict in ("wrong", "failed") for o in outcomes))


def read_text() -> str:
    """Runs the optimized text recogniser on a drawn line and decodes what it says."""
    from tilegraph.runtime import session

    model = next(m for m in zoo() if m.name == "ppocr_rec")
    letters = next(p.value for p in onnx.load(model.path).metadata_props if p.key == "character").split("\n")
    classes = ["", *letters, " "]
    scores = session(OUT / "ppocr_rec.tilegraph", threads=1).run(None, model.inputs(1, batch=1))[0]
    best = np.asarray(scores)[0].argmax(-1)
    return "".join(classes[c] for i, c in enumerate(best) if c and (i == 0 or best[i - 1] != c)).strip()


if __name__ == "__main__":
    raise SystemExit(main())
