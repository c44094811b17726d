"""Which models gain and which lose: every model with its own inputs, optimized with the defaults, against the original.

    python -m tests.conformance.speed [--group corpus ...] [--filter TEXT] [--part 1/4] [--seconds .3] [--prepare]
    python -m tests.conformance.speed --models FOLDER     # its *.onnx, each with inputs in_NAME in an .npz beside it

The folders are made once (`--folder`, default build/conformance/speed; `--prepare` stops there) and timed in one
process: one thread each for the folder and for the original in ONNX Runtime with all optimizations, in turns, CPU time
of the thread. The ratio is that of the least times and, where a machine is shared, so is nothing else: both sides have
many chances at an undisturbed run. Whether answers agree is not asked here (tests.conformance.sweep does).
Prints a table, slowest first, and the times to optimize; exits with 1 if a ratio is below `--least`.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.conformance.sweep import PART_HELP, part_of, share, sweep
from tests.conformance.sweep_cases import GROUPS, ROOT, Case, Feeds, cases, feeds_of, open_case

LEAST = 0.98
_LIMIT_S = 300.0  # to optimize a model of a folder
_BLOCK_S = 1e-4  # a reading takes at least this long: a clock's own time is lost in it


@dataclass
class Prepared:
    """What optimizing took, in seconds of CPU time of the process and its children, and MiB at its peak."""

    name: str
    error: str = ""
    cpu_s: float = 0.0
    peak_mb: float = 0.0
    nodes: int = 0
    kernels: int = 0
    plugin_nodes: int = 0

    @property
    def good(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class Timed:
    """Least times in µs, and the median of the ratios of neighbouring readings."""

    name: str
    original_us: float
    folder_us: float
    paired: float

    @property
    def ratio(self) -> float:
        return self.original_us / self.folder_us


def place_of(case: Case, folder: Path) -> Path:
    return folder / f"{Path(case.group).name}-{case.name}.tilegraph"


def open_any(case: Case) -> tuple[Path, list[Feeds]]:
    """The model's file and its inputs; a group that is no known one is a folder."""
    if case.group in GROUPS:
        return open_case(case)
    path = Path(case.group) / f"{case.name}.onnx"
    return path, feeds_of(path.with_suffix(".npz"))


def prepare(case: Case, folder: str, connection: Any) -> None:
    """The body of a child: writes the model's folder and sends a `Prepared`."""
    from tilegraph.compiler import optimize

    result = Prepared(case.name)
    start = _cpu()
    try:
        model = optimize(open_any(case)[0])
        model.save(place_of(case, Path(folder)), force=True)
        result.nodes, result.kernels = model.summary.nodes_before, _kernels(model.manifest)
        result.plugin_nodes = model.summary.partitions
    except Exception as error:  # a model of ONNX's own sets may be no model
        result.error = f"{type(error).__name__}: {str(error)[:200]}"
    result.cpu_s = _cpu() - start
    result.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    connection.send(result)
    connection.close()


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _kernels(manifest: Any) -> int:
    return sum(len(program.calls) for program in manifest.programs.values())


def time_case(case: Case, folder: Path, seconds: float) -> Timed | str:
    """The times of both on the case's first inputs, or why there are none."""
    import onnxruntime as ort

    from tilegraph.runtime import session

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    path, feeds = open_any(case)
    try:
        original = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        given = {i.name: feeds[0][i.name] for i in original.get_inputs()}
        original.run(None, given)
    except Exception as error:  # what ONNX Runtime raises has no common base
        return f"ONNX Runtime: {str(error)[:200]}"
    return compare(case.name, original, session(place_of(case, folder), sess_options=options), given, seconds)


def compare(name: str, original: Any, ours: Any, given: Feeds, seconds: float) -> Timed:
    """Readings in turns, each of as many runs as last `_BLOCK_S`, for about `seconds` in all."""
    sides = (original, ours)
    runs = [max(1, round(_BLOCK_S / max(_reading(s, given, 3), 1e-6))) for s in sides]
    times: tuple[list[float], list[float]] = ([], [])
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[0]) < 5:
        for side, count, taken in zip(sides, runs, times, strict=True):
            taken.append(_reading(side, given, count))
    paired = statistics.median(a / b for a, b in zip(*times, strict=True))
    return Timed(name, min(times[0]) * 1e6, min(times[1]) * 1e6, paired)


def _reading(session: Any, given: Feeds, runs: int) -> float:
    """Seconds of CPU time of this thread, for one of `runs` runs."""
    start = time.thread_time()
    for _ in range(runs):
        session.run(None, given)
    return (time.thread_time() - start) / runs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--group", action="append", help="of tests.conformance.sweep; may be repeated; default: corpus")
    parser.add_argument("--models", type=Path, help="a folder instead of a group")
    parser.add_argument("--filter", default="", help="regular expression, searched in the name")
    parser.add_argument("--part", type=part_of, default=(0, 1), help=PART_HELP)
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each model")
    parser.add_argument("--least", type=float, default=LEAST, help="the smallest ratio that is not a loss")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "conformance" / "speed")
    parser.add_argument("--prepare", action="store_true", help="only optimize what has no folder yet")
    parser.add_argument("--fresh", action="store_true", help="optimize all again")
    parser.add_argument("--json", type=Path, help="where the figures go, too")
    options = parser.parse_args(arguments)
    known = [Case(str(options.models), p.stem, _LIMIT_S) for p in sorted(options.models.glob("*.onnx"))] \
        if options.models else cases(tuple(options.group or ["corpus"]))
    chosen = share([c for c in known if re.search(options.filter, c.name)], options.part)
    options.folder.mkdir(parents=True, exist_ok=True)
    missing = [c for c in chosen if options.fresh or not place_of(c, options.folder).is_dir()]
    prepared = sweep([(c, str(options.folder)) for c in missing], 1, body=prepare)
    made = [p for p in prepared if isinstance(p, Prepared)]
    for p in sorted(made, key=lambda p: -p.cpu_s):
        print(f"{p.cpu_s:7.2f} s {p.peak_mb:6.0f} MiB  {p.nodes:5} nodes  {p.kernels:4} kernels  {p.name} {p.error}")
    timed: list[Timed] = []
    if not options.prepare:
        for case in chosen:
            found = time_case(case, options.folder, options.seconds) if place_of(case, options.folder).is_dir() \
                else "it has no folder"
            if isinstance(found, Timed):
                timed.append(found)
            else:
                print(f"not timed: {case.name}: {found}")
    for t in sorted(timed, key=lambda t: t.ratio):
        print(f"{t.ratio:6.3f} {t.paired:6.3f}  {t.original_us:10.1f} {t.folder_us:10.1f} µs  {t.name}")
    if options.json is not None:
        options.json.write_text(json.dumps({"prepared": [asdict(p) for p in made], "timed": [
            {**asdict(t), "ratio": t.ratio} for t in timed]}, indent=1))
    lost = [t for t in timed if t.ratio < options.least]
    if not options.prepare:
        print(f"{len(timed)} timed, {len(lost)} below {options.least:g}")
    return 1 if lost or len(made) < len(prepared) or not all(p.good for p in made) else 0


if __name__ == "__main__":
    sys.exit(main())
