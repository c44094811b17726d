"""What each command does. Heavy imports are inside the functions: `tilegraph --help` must be quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilegraph.cli.output import check_writable, console, dims_of, progress, write_json, write_text
from tilegraph.errors import InputError, NotEnoughMemory, UsageError
from tilegraph.spec.digest import artifact_sha256

if TYPE_CHECKING:
    from tilegraph.verify import VerifyResult
    from tilegraph.verify.bisect import Finding


def default_output(model: Path, *, embed: bool = False) -> Path:
    """The folder `model.tilegraph` beside `model.onnx`, or the file `model.tilegraph.onnx` with `embed`."""
    stem = model.stem if model.suffix == ".onnx" else model.name
    return model.with_name(stem + (".tilegraph.onnx" if embed else ".tilegraph"))


def optimize(model: Path | None, target: str, output: Path | None, dim: list[str], embed: bool, offload: Any,
             portable: bool, list_passes: bool, disable: list[str], mcpu: str | None, precision: str, weights: str,
             fast_winograd: bool, trust_hidden: bool, tune: bool, tune_budget: float | None, dry_run: bool,
             dump: Path | None, cache_dir: Path | None, force: bool, json: str | None, quiet: bool,
             verbose: bool) -> None:
    dims = dims_of(dim)
    if model is not None:
        _require_file(model)
    elif not list_passes:
        raise UsageError("optimize: give the .onnx file to optimize")
    from tilegraph import compiler

    if list_passes or model is None:
        for name in compiler.list_passes(target):
            print(name)
        return
    check_writable(json)
    for option, place in (("--dump", dump), ("--cache-dir", cache_dir)):
        if place is not None and place.exists() and not place.is_dir():
            raise UsageError(f"{option} {place}: is not a folder; name a folder, which may be new")
    folder = output or default_output(model, embed=embed)
    tuning = _tuning(tune, tune_budget)
    with progress(quiet=quiet) as step:
        result = compiler.optimize(model, target, dims=dims or None, offload=offload, disable=disable, mcpu=mcpu,
                                   precision=precision, weights=weights, fast_winograd=fast_winograd,
                                   trust_hidden=trust_hidden, dump=dump, cache_dir=cache_dir, progress=step,
                                   dry_run=dry_run, **tuning)
        saved = None if dry_run else result.save(folder, force=force, embed=embed, portable=portable)
    from tilegraph.cli.tables import show_decisions, show_summary

    report = result.report()
    if saved is not None:
        report["sha256"] = artifact_sha256(saved)
    write_json(json, report)
    out = console(quiet=quiet, json_target=json)
    show_summary(out, report)
    if verbose:
        show_decisions(out, report)
    if saved is not None:
        out.print(f"written: {saved}", markup=False, soft_wrap=True)
        out.print(f"sha256: {report['sha256']}", markup=False, soft_wrap=True)


def _tuning(tune: bool, budget: float | None) -> dict[str, Any]:
    """The compiler's arguments for `--tune`."""
    if not tune:
        if budget is not None:
            raise UsageError("--tune-budget limits --tune, which is not given")
        return {}
    from tilegraph.bench.tune import Measure

    return {"measure": Measure(), **({} if budget is None else {"budget": budget})}


def verify(original: Path, optimized: Path, inputs: Path | None, samples: int, seed: int, rtol: float | None,
           atol: float | None, dim: list[str], threads: int | None, bisect: Path | None,
           expect_sha256: str | None, junit: Path | None, json: str | None, quiet: bool, verbose: bool) -> int:
    dims = dims_of(dim)
    check_writable(json, junit)
    from tilegraph.cli.tables import show_finding, show_verification
    from tilegraph.verify import VerifyResult
    from tilegraph.verify import verify as run_verify

    with progress(quiet=quiet) as step:
        try:
            result = run_verify(original, optimized, inputs=inputs, samples=samples, seed=seed, rtol=rtol, atol=atol,
                                threads=threads, dims=dims or None, expect_sha256=expect_sha256, progress=step)
        except NotEnoughMemory as error:  # what is wrong is the machine: a CI server shows that nothing was proved
            nothing = VerifyResult(str(original), str(optimized), seed=seed, inconclusive=str(error))
            _write_verification(nothing, None, json, junit)
            raise
        finding = None
        if bisect is not None and not result.inconclusive:
            from tilegraph.verify.bisect import bisect as run_bisect

            finding = run_bisect(result, bisect, threads=threads, rtol=rtol, atol=atol, progress=step)
    _write_verification(result, finding, json, junit)
    out = console(quiet=quiet, json_target=json)
    show_verification(out, result, verbose=verbose)
    if finding is not None:
        show_finding(out, finding)
    if result.inconclusive:
        raise InputError(f"{optimized}: {result.inconclusive}")
    return 0 if result.same else 1


def _write_verification(result: VerifyResult, finding: Finding | None, json: str | None, junit: Path | None) -> None:
    found = result.to_json()
    if finding is not None:
        found["bisect"] = finding.to_json()
    write_json(json, found)
    if junit is not None:
        from tilegraph.verify.junit import junit_xml

        write_text(junit, junit_xml(result, finding))


def bench(models: list[Path], threads: int, runs: int, inputs: Path | None, dim: list[str], json: str | None,
          quiet: bool) -> None:
    dims = dims_of(dim)
    check_writable(json)
    from tilegraph.bench import bench as run_bench
    from tilegraph.bench import table

    with progress(quiet=quiet) as step:
        step(f"{runs} rounds of {len(models)} models")
        result = run_bench(models, threads=threads, runs=runs, inputs=inputs, dims=dims or None)
    write_json(json, result.to_json())
    console(quiet=quiet, json_target=json).print(table(result))


def explain(model: Path, target: str, dim: list[str], offload: str, disable: list[str], mcpu: str | None,
            precision: str, weights: str, fast_winograd: bool, trust_hidden: bool, inputs: Path | None,
            json: str | None, html: Path | None, markdown: Path | None, quiet: bool) -> None:
    dims = dims_of(dim)
    check_writable(json, html, markdown)
    from tilegraph.cli.tables import show_decisions, show_summary
    from tilegraph.explain import explain as run_explain

    with progress(quiet=quiet) as step:
        found = run_explain(model, target, dims=dims or None, offload=offload, disable=disable, mcpu=mcpu,
                            precision=precision, weights=weights, fast_winograd=fast_winograd,
                            trust_hidden=trust_hidden, inputs=inputs, progress=step)
    write_json(json, found.to_json())
    if html is not None or markdown is not None:
        from tilegraph.report import render

        if html is not None:
            write_text(html, render(found.report, "html"))
        if markdown is not None:
            write_text(markdown, render(found.report, "markdown"))
    out = console(quiet=quiet, json_target=json)
    show_summary(out, found.report)
    show_decisions(out, found.report)


def targets() -> None:
    from tilegraph import targets as known

    width = max((len(n) for n in known.names()), default=0)
    for name in known.names():
        print(f"{name:<{width}}  {known.describe(name)}")


def ep_path() -> None:
    import importlib

    path = importlib.import_module("tilegraph.runtime").ep_library_path()
    sys.stdout.write(f"{path}\n")


def _require_file(model: Path) -> None:
    if model.is_dir():
        raise InputError(f"{model}: is a folder; give the .onnx file")
    if not model.is_file():
        raise InputError(f"{model}: no such file")
