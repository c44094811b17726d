"""Runs every model there is through optimize, the plugin and a comparison with ONNX Runtime, each in its own process.

    python -m tests.conformance.sweep [--offload all|auto|both] [--group corpus ...] [--filter TEXT] [--part 1/4]
                                        [--jobs N]

Prints a table of what went wrong and of what was slow, and writes all results as JSON, with ONNX's node tests also a
table of operators (tests.conformance.covered.py). Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.conformance import covered
from tests.conformance.sweep_cases import GROUPS, ROOT, Case, cases

SLOW_S = 5.0
PART_HELP = "a share of the cases, so that a long run can be continued: 1/4 to 4/4"
Job = tuple[Case, str]


def sweep(jobs: Sequence[Job], workers: int, report: Callable[[Any], None] | None = None,
          body: Callable[[Case, str, Any], None] | None = None) -> list[Any]:
    """The `Result` of each job, in order. A child that dies or outlives its limit is a result, too.

    `body` is what a child does (default: `sweep_worker.work`).
    """
    from tests.conformance.sweep_worker import Result, work

    context = multiprocessing.get_context("forkserver")
    # The server imports everything once; children are forked from it.
    context.set_forkserver_preload(["tests.conformance.sweep_worker", "tilegraph.codegen.rows", "onnxruntime"])
    results: dict[int, Any] = {}
    running: dict[int, tuple[Any, Any, float]] = {}
    waiting = list(enumerate(jobs))[::-1]
    while waiting or running:
        while waiting and len(running) < workers:
            number, (case, offload) = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=body or work, args=(case, offload, theirs), daemon=True)
            process.start()
            theirs.close()
            running[number] = (process, ours, time.monotonic())
        connection.wait([ours for _, ours, _ in running.values()], timeout=0.1)
        for number, (process, ours, started) in list(running.items()):
            case, offload = jobs[number]
            spent = time.monotonic() - started
            lost: Any = None
            if ours.poll():
                try:
                    lost = ours.recv()
                except EOFError:
                    process.join()
                    lost = Result(case.group, case.name, offload, "CRASH", f"exit code {process.exitcode}", spent)
            elif spent > case.limit:
                process.kill()
                lost = Result(case.group, case.name, offload, "TIMEOUT", f"more than {case.limit:.0f} s", spent)
            if lost is not None:
                process.join()
                ours.close()
                results[number] = lost
                del running[number]
                if report is not None:
                    report(lost)
    return [results[k] for k in range(len(jobs))]


def table(results: Sequence[Any]) -> str:
    """Counts by group, then what failed, then what was slow to optimize."""
    lines: list[str] = []
    for group, offload in dict.fromkeys((r.group, r.offload) for r in results):
        counts = Counter(r.status for r in results if (r.group, r.offload) == (group, offload))
        lines.append(f"{group:8} {offload:5} " + "  ".join(f"{k} {v}" for k, v in sorted(counts.items())))
    failed = [r for r in results if not r.good]
    lines += ["", f"failed: {len(failed)}"]
    lines += [f"  {r.status:8} {r.offload:5} {r.group}/{r.name}: {r.detail}" for r in failed]
    slow = sorted((r for r in results if r.optimize_s > SLOW_S), key=lambda r: -r.optimize_s)
    lines += ["", f"optimize took more than {SLOW_S:g} s: {len(slow)}"]
    for r in slow:
        longest = sorted(r.stages.items(), key=lambda s: -s[1])[:3]
        lines.append(f"  {r.optimize_s:5.1f} s {r.offload:5} {r.group}/{r.name}, {r.nodes_before} nodes: "
                     + ", ".join(f"{k} {v:.1f}" for k, v in longest))
    reasons: Counter[str] = Counter()
    for r in results:
        reasons.update(dict(r.refusals))
    lines += ["", "reasons for refusals, most frequent first:"]
    lines += [f"  {count:6} {reason}" for reason, count in reasons.most_common(25)]
    return "\n".join(lines)


def part_of(text: str) -> tuple[int, int]:
    """"2/4" as (1, 4): which share, counted from 0, and of how many."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 1/4 to 4/4 for four of them")
    return int(found[1]) - 1, int(found[2])


def share(chosen: Sequence[Case], part: tuple[int, int]) -> list[Case]:
    """The cases of that share, in order: all shares together are `chosen`."""
    number, parts = part
    return list(chosen[len(chosen) * number // parts:len(chosen) * (number + 1) // parts])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--offload", choices=("all", "auto", "both"), default="both")
    parser.add_argument("--group", choices=GROUPS, action="append", help="may be repeated; default: all")
    parser.add_argument("--filter", default="", help="regular expression, searched in group/name")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--part", type=part_of, default=(0, 1), help=PART_HELP)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--json", default=str(ROOT / "build" / "conformance" / "sweep.json"))
    options = parser.parse_args(arguments)
    chosen = [c for c in cases(tuple(options.group or GROUPS)) if re.search(options.filter, c.label)][::options.every]
    jobs: list[Job] = []
    for case in share(chosen, options.part):
        wanted = ("all", "auto") if options.offload == "both" and case.group != "node" else (
            "all" if options.offload == "both" else options.offload,)
        jobs += [(case, offload) for offload in wanted]
    if not jobs:
        print("no case matches", file=sys.stderr)
        return 2
    done = 0

    def report(result: Any) -> None:
        nonlocal done
        done += 1
        if not result.good:
            print(f"[{done}/{len(jobs)}] {result.status} {result.offload} {result.group}/{result.name}: "
                  f"{result.detail}", flush=True)
        elif done % 50 == 0:
            print(f"[{done}/{len(jobs)}]", flush=True)

    results = sweep(jobs, options.jobs, report)
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    with open(options.json, "w", encoding="utf-8") as stream:
        json.dump([r.to_json() for r in results], stream, indent=1)
    print(table(results))
    print(f"\n{options.json}: {len(results)} results")
    if any(r.group == "node" for r in results):
        page = Path(options.json).with_name("operators.md")
        page.write_text(covered.table(covered.operators(r.to_json() for r in results)) + "\n", encoding="utf-8")
        print(f"{page}: which operators run in kernels")
    return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
