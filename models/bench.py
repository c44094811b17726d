"""`make bench`: every chain, real model and built model against ONNX Runtime on the original.

    python -m models.bench [--only chains|zoo|built|attention|overhead|compile] [--case NAME] [--threads 1,2] [--runs N]
                           [--peers installed|none|NAME,...] [--peers-python PYTHON]
                           [--json FILE] [--markdown] [--readme]

Exit code 1 if an answer is wrong or a case failed; a case that is right but slower than required is called short, and
one that takes more memory than is free is skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from models import report
from models.cases import GROUPS, Case, cases
from models.compile_times import compile_times
from models.overhead import Overhead, measure
from models.pipeline import Outcome, run_case
from tilegraph.bench.kinds import KINDS, PYTHON_VARIABLE, find
from tilegraph.errors import TilegraphError, UsageError

CONSTANTS = (0, 30, 200)
README = Path(__file__).resolve().parents[1] / "README.md"
MEASUREMENTS = README.parent / "docs" / "measurements.md"


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    err = Console(stderr=True)
    outcomes: list[Outcome] = []
    overheads: list[Overhead] = []
    lines: list[str] = []
    failed = False
    try:
        found = find(None if options.peers == ["installed"] else options.peers, options.peers_python)
    except UsageError as error:
        raise SystemExit(str(error)) from error
    for one in found:
        err.print(f"peer {one}", markup=False, soft_wrap=True)
    for case in _chosen(options.only, options.case):
        outcome = run_case(case, threads=options.threads, runs=options.runs, found=found)
        outcomes.append(outcome)
        seconds = f"optimize {outcome.optimize_s:.1f} s, verify {outcome.verify_s:.1f}, time {outcome.bench_s:.1f}"
        err.print(f"{case.group}/{case.name}: {outcome.verdict} ({seconds})"
                  + "".join(f"; {p}" for p in outcome.problems), markup=False, soft_wrap=True)
    for said in (report.skip_lines(outcomes), report.peer_lines(found, outcomes), report.scaling_lines(outcomes),
                 report.product_lines(outcomes)):
        lines += said
    if options.only in (None, "overhead") and not options.case:
        for constants in CONSTANTS:
            try:
                overheads.append(measure(constants, runs=options.runs or 30))
            except TilegraphError as error:
                failed = True
                lines.append(f"failed: {error}")
        lines += report.overhead_lines(overheads)
    if options.only in (None, "compile") and not options.case:
        lines += compile_times()
    if outcomes:
        Console(width=None if sys.stdout.isatty() else 200).print(
            report.terminal(outcomes, options.threads, "tilegraph bench"))
    for line in lines:
        print(line)
    block = report.markdown(outcomes, options.threads, lines)
    if options.markdown:
        print(block)
    if options.readme:
        _write(outcomes, options.threads, block, report.PEERS if any(o.rivals for o in outcomes) else report.BENCH)
    if options.json:
        data = {"peers": [str(one) for one in found],
                "cases": [o.to_json() for o in outcomes], "overhead": [o.to_json() for o in overheads],
                "lines": lines}
        Path(options.json).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(failed or any(o.verdict in ("wrong", "failed") for o in outcomes))


def _write(outcomes: list[Outcome], threads: list[int], block: str, name: str) -> None:
    """Into the README and docs/measurements.md; runs with and without peers have blocks of their own there."""
    short = (report.brief_peers if name == report.PEERS else report.brief)(outcomes, threads)
    for page, part in ((README, short), (MEASUREMENTS, block)):
        page.write_text(report.between_markers(page.read_text(encoding="utf-8"), part, name), encoding="utf-8")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m models.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[*GROUPS, "overhead", "compile"])
    parser.add_argument("--case", action="append", default=[], help="only this case (may be repeated)")
    parser.add_argument("--threads", type=_threads, default=[1, 2], help="such as 1,2 (the default)")
    parser.add_argument("--runs", type=int, help="rounds (default: 30, fewer for models of more than a second)")
    parser.add_argument("--peers", type=lambda text: [] if text == "none" else text.split(","), default=["installed"],
                        help=f"others to compare with: installed (the default), none, or of {', '.join(KINDS)}")
    parser.add_argument("--peers-python", metavar="PYTHON",
                        help=f"an interpreter that has peers which this one lacks (default: ${PYTHON_VARIABLE})")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/measurements.md")
    parser.add_argument("--readme", action="store_true", help="write docs/measurements.md and the README's table")
    return parser.parse_args(arguments)


def _threads(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of thread counts such as 1,2")
    return counts


def _chosen(only: str | None, names: list[str]) -> list[Case]:
    groups = [g for g in GROUPS if only in (None, g)]
    found = [c for g in groups for c in cases(g)]
    unknown = set(names) - {c.name for c in found}
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are: {', '.join(c.name for c in found)}")
    return [c for c in found if not names or c.name in names]


if __name__ == "__main__":
    raise SystemExit(main())
