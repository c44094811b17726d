"""The references that a model can be compared with, best first.

1. ONNX Runtime on the model in double, 2. onnx.reference on the model in double (in a child process, for a limited
time), 3. expected outputs that the user gave, 4. ONNX Runtime in the model's own dtype without optimizations.
`Ladder.run` gives the double results of the samples; the choice is made per output in `api`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from tilegraph.verify.compare import is_float
from tilegraph.verify.double import NoDoubleForm, to_double
from tilegraph.verify.inputs import load_for_analysis
from tilegraph.verify.run import Feeds, MemoryShort, ModelRun, RunFailure, Value, open_runner

ORT_DOUBLE = "ORT in float64"
REFERENCE_DOUBLE = "onnx.reference in float64"
EXPECTED = "given expected outputs"
ORT_SAME = "ORT in the model's dtype, optimizations off"

REFERENCE_LIMIT_S = 60.0
_EXTERNAL_FROM = 1 << 28  # bytes of weights above which the double model is written with external data
LARGE_BYTES = 1_500_000_000


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers."""
    return sum(v.const_value.nbytes for g in (model.graph, *model.graph.subgraphs())
               for v in g.initializers.values() if v.const_value is not None)


def widen(value: Value) -> Value:
    """The same value with every float tensor in float64."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if is_float(value.dtype) else value
    return [widen(v) for v in value] if isinstance(value, list) else value


class Ladder:
    """Runs samples on the double form of the model at `path`; `extra` values become outputs too. `heavy`: in a process
    of its own, see `memory`."""

    def __init__(self, path: Path, *, threads: int | None, limit: float = REFERENCE_LIMIT_S,
                 extra: tuple[str, ...] = (), heavy: bool = False,
                 progress: Callable[[str], None] | None = None) -> None:
        self._heavy = heavy
        self._path, self._threads, self._limit, self._extra = path, threads, limit, extra
        self._progress = progress or (lambda _: None)
        self.notes: list[str] = []

    def run(self, samples: list[Feeds | None]) -> list[tuple[str, list[Value]] | None]:
        """Per sample the rung's name and its outputs in the model's order (then `extra`), or None."""
        with tempfile.TemporaryDirectory(prefix="tilegraph-verify-") as folder:
            try:
                path = self._write_double(Path(folder))
            except NoDoubleForm as why:
                self.notes.append(f"no float64 reference: {why}")
                return [None] * len(samples)
            found: list[tuple[str, list[Value]] | None] = [None] * len(samples)
            wide: list[Feeds | None] = [None if s is None else {k: widen(v) for k, v in s.items()} for s in samples]
            self._progress("reference: ORT in float64")
            enough = self._fill(found, wide, ModelRun(path, threads=self._threads, heavy=self._heavy), ORT_DOUBLE, None)
            # onnx.reference keeps every value to the end: what is too much for ORT is too much for it.
            if enough and any(f is None and w is not None for f, w in zip(found, wide, strict=True)):
                self._progress("reference: onnx.reference in float64")
                self._fill(found, wide, ModelRun(path, engine="reference", heavy=self._heavy), REFERENCE_DOUBLE,
                           self._limit)
            return found

    def _fill(self, found: list[tuple[str, list[Value]] | None], samples: list[Feeds | None], what: ModelRun,
              rung: str, limit: float | None) -> bool:
        """False where there was too little memory."""
        try:
            runner = open_runner(what, isolate=what.heavy or limit is not None)
        except RunFailure as failure:
            self.notes.append(f"not used: {rung} ({failure})")
            return not isinstance(failure, MemoryShort)
        try:
            for index, feeds in enumerate(samples):
                if feeds is not None and found[index] is None:
                    found[index] = (rung, runner.run(feeds, limit))
        except RunFailure as failure:
            self.notes.append(f"not used from sample {index} on: {rung} ({failure})")
            return not isinstance(failure, MemoryShort)
        finally:
            runner.close()
        return True

    def _write_double(self, folder: Path) -> str:
        model = load_for_analysis(self._path)
        expose(model, self._extra)
        try:
            to_double(model)
        except NoDoubleForm:
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            # An odd but valid model must not stop verify: the next rung can still serve.
            raise NoDoubleForm(f"the conversion failed ({type(error).__name__}: {error})") from error
        return write(model, folder / "double.onnx")


def expose(model: ir.Model, names: tuple[str, ...]) -> None:
    """Makes inner values of the main graph outputs."""
    by_name: dict[str | None, ir.Value] = {v.name: v for n in model.graph for v in n.outputs}
    by_name.update({v.name: v for v in model.graph.inputs})
    have = {v.name for v in model.graph.outputs}
    for name in names:
        if name in by_name and name not in have:
            model.graph.outputs.append(by_name[name])


def write(model: ir.Model, path: Path) -> str:
    """Saves to `path`, with external data when large; returns the path as text."""
    external: dict[str, Any] = {"external_data": path.name + ".data"} if weight_bytes(model) > _EXTERNAL_FROM else {}
    ir.save(model, str(path), **external)
    return str(path)
