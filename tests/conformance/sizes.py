"""One compiled folder at every size that the original serves: symbolic extents of 0, 1, 2, 7, 64 and more.

    python -m tests.conformance.sizes [--group corpus ...] [--offload all|auto] [--filter TEXT] [--every N] [--jobs N]

All symbols of a model at once, then each alone with the others as in the example. The folder must answer as ONNX
Runtime does without optimizations, and refuse where it refuses: what it answers beyond that is counted and listed, but
no fault. What it refuses alone is one, unless inputs contradict the names of their extents, or the model joins extents
that are equal at sizes that it is made for (docs/decisions.md): these are listed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.conformance.sweep import PART_HELP, part_of, share, sweep, table
from tests.conformance.sweep_cases import GROUPS, Case, Feeds, cases, open_case
from tilegraph.spec.dims import Dim

SIZES = (1, 2, 7, 64, 0)
ENDS = "the process that ran it"  # in the message of a run whose process ended
ENDED = "the process ended"
LIMIT = 1 << 21  # elements of all inputs together
Names = dict[str, list[str | None]]  # of an input's extents: a symbol, or None for a number


def symbols(model: onnx.ModelProto, feeds: Feeds) -> tuple[Names, dict[str, int]]:
    """The symbols of each input that `feeds` has as an array, and their sizes there. Nameless extents are symbols of
    their own; sums such as "past + length" are none, they follow from theirs."""
    names: Names = {}
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        given = feeds.get(value.name)
        dims = value.type.tensor_type.shape.dim
        if not isinstance(given, np.ndarray) or len(dims) != given.ndim:
            continue
        found: list[str | None] = []
        for k, dim in enumerate(dims):
            name = None if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{k}"
            if name is not None:
                sizes.setdefault(name, given.shape[k])
            found.append(name)
        names[value.name] = found
    plain = {name: size for name, size in sizes.items() if _follows(name, sizes) is None}
    return names, plain


def _follows(name: str, known: Mapping[str, int]) -> Dim | None:
    """The expression of other symbols that `name` is; None for a symbol."""
    try:
        dim = Dim.of(name)
    except ValueError:
        return None
    return dim if dim.bare_symbol is None and dim.symbols and dim.symbols <= known.keys() - {name} else None


def resized(feeds: Feeds, names: Names, sizes: Mapping[str, int]) -> Feeds:
    """`feeds` with other sizes of the symbols: elements are repeated, so that their values stay what they may be."""
    made = dict(feeds)
    for name, dims in names.items():
        array = feeds[name]
        for axis, symbol in enumerate(dims):
            if symbol is None:
                continue
            size = sizes[symbol] if symbol in sizes else Dim.of(symbol).evaluate(sizes)
            if array.shape[axis]:
                array = np.take(array, np.arange(size) % array.shape[axis], axis)
            else:
                array = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1:]), array.dtype)
        made[name] = np.array(array, order="C")  # ascontiguousarray would give a scalar an axis
    return made


def variants(model: onnx.ModelProto, feeds: Feeds) -> Iterator[tuple[str, Feeds]]:
    """What is changed, in words, and the inputs; nothing for a model without symbols."""
    names, example = symbols(model, feeds)
    seen = [example]
    wanted: list[tuple[str, dict[str, int]]] = [(f"all {n}", dict.fromkeys(example, n)) for n in SIZES]
    wanted += [(f"{symbol} {n}", {**example, symbol: n})
               for symbol, size in example.items() for n in (1, 0, 2 * size + 1)]
    for words, sizes in wanted:
        if sizes in seen:
            continue
        seen.append(sizes)
        made = resized(feeds, names, sizes)
        if sum(v.size for v in made.values() if isinstance(v, np.ndarray)) <= LIMIT:
            yield words, made


def work(case: Case, offload: str, connection: Any) -> None:
    """The body of a child process: sends one result, as the sweep's does."""
    from tests.conformance.sweep_worker import Result

    result = Result(case.group, case.name, offload)
    try:
        _run(case, result)
    except Exception as error:
        result.status, result.detail = result.status or "CRASH", f"{type(error).__name__}: {str(error)[:300]}"
    connection.send(result)
    connection.close()


def _run(case: Case, result: Any) -> None:
    from tests.conformance.sweep_worker import THREADS, answers_of, differs
    from tilegraph.compiler import optimize
    from tilegraph.spec.artifact import EP_NAME, MODEL_FILE
    from tilegraph.verify.run import ModelRun, open_runner

    path, sets = open_case(case)
    changed = list(variants(onnx.load(path, load_external_data=False), sets[0]))
    if not changed:
        result.status, result.detail = "ort", "no symbols"
        return
    original = ModelRun(str(path), threads=THREADS)
    references, fatal = references_of(lambda: open_runner(original, isolate=True), changed)
    with tempfile.TemporaryDirectory(prefix="sizes-") as scratch:
        result.status = "OPTIMIZE"
        made = optimize(path, offload=result.offload)
        folder = made.save(Path(scratch) / "m.tilegraph")
        result.status = "LOAD"
        ours = ModelRun(str(folder / MODEL_FILE), optimize=True, plugin=True, threads=THREADS)
        problems, beyond, joined, both_end = [], [], [], []
        for (words, given), wanted in zip(changed, references, strict=True):
            result.status = f"CRASH at {words}"
            (found,), why = answers_of(ours, [given]) if words not in fatal else apart(ours, given)
            if why == ENDED and found is None:
                both_end.append(words)
                continue
            if wanted is None or found is None:
                if wanted is not None and "joins values whose extents" in why:
                    joined.append(words)  # ONNX Runtime repeats an extent of 1, or pools over less than a window
                elif wanted is not None:
                    problems.append(f"{words}: refused: {why[:200]}")
                elif found is not None:
                    beyond.append(words)
                continue
            problem = differs(path, folder, given, wanted, found, result)
            if problem:
                problems.append(f"{words}: {problem}")
        result.ep_nodes = made.summary.engines.get(EP_NAME, 0)
        answered = sum(r is not None for r in references)
        result.status = "WRONG" if problems else "kernel" if result.ep_nodes else "ort"
        result.detail = "; ".join(problems) or f"{answered} of {len(changed)} sizes" + (
            f", answers alone at {', '.join(beyond)}" if beyond else "") + (
            f", refused at {', '.join(joined)}: extents that the model joins" if joined else "") + (
            f", ONNX Runtime ends its process at {', '.join(fatal)}" if fatal else "") + (
            f", and the folder's at {', '.join(both_end)}" if both_end else "")


def apart(what: Any, given: Feeds) -> tuple[list[Any], str]:
    """`answers_of` for one set of inputs in a process of its own, which nodes that the folder leaves with ONNX Runtime
    may end as they end ONNX Runtime's own. Then the reason is ENDED."""
    from tilegraph.verify.run import RunFailure, open_runner

    runner = None
    try:
        runner = open_runner(what, isolate=True)
        return [dict(zip((name for name, _ in runner.signature[1]), runner.run(given), strict=True))], ""
    except RunFailure as failure:
        return [None], ENDED if ENDS in str(failure) else str(failure)
    finally:
        if runner is not None:
            runner.close()


def references_of(opened: Callable[[], Any], changed: list[tuple[str, Feeds]]) -> tuple[list[Any], list[str]]:
    """What ONNX Runtime answers, None where it refuses, and the sizes at which its process ends. `opened` makes a
    runner in a process of its own."""
    from tilegraph.verify.run import RunFailure

    answers: list[Any] = []
    fatal: list[str] = []
    runner = None
    for words, given in changed:
        runner = runner or opened()
        try:
            answers.append(dict(zip((name for name, _ in runner.signature[1]), runner.run(given), strict=True)))
        except RunFailure as failure:
            answers.append(None)
            if ENDS in str(failure):
                fatal.append(words)
                runner.close()
                runner = None
    if runner is not None:
        runner.close()
    return answers, fatal


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--group", choices=GROUPS, action="append", help="may be repeated; default: corpus and zoo")
    parser.add_argument("--offload", choices=("all", "auto"), default="all")
    parser.add_argument("--filter", default="", help="regular expression, searched in group/name")
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--part", type=part_of, default=(0, 1), help=PART_HELP)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    chosen = [c for c in cases(tuple(given.group or ("corpus", "zoo"))) if re.search(given.filter, c.label)]

    done = 0

    def report(result: Any) -> None:
        nonlocal done
        done += 1
        if not result.good or "at " in result.detail or done % 10 == 0:
            print(f"[{done}/{len(patient)}] {result.status} {result.group}/{result.name}: {result.detail}", flush=True)

    patient = [(replace(c, limit=600.0), given.offload) for c in share(chosen[::given.every], given.part)]
    results = sweep(patient, given.jobs, report, body=work)
    print(table(results))
    if not results:
        print("no case matches", file=sys.stderr)
        return 2
    print(f"models with symbols: {sum(r.detail != 'no symbols' for r in results)}")
    return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
