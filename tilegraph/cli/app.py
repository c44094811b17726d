"""The commands and their options; what they do is in `commands`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tilegraph.cli.output import error
from tilegraph.errors import TilegraphError

# Newer typers carry their own copy of click, older ones import it: ask the class for its base.
_ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Optimizes ONNX models, compiles what it can run faster, and proves that the answers are the "
                       "same.")


class Offload(StrEnum):
    auto = "auto"
    all = "all"
    none = "none"


class Precision(StrEnum):
    float32 = "float32"
    bf16 = "bf16"


class Weights(StrEnum):
    float32 = "float32"
    int8 = "int8"
    int4 = "int4"


Target = Annotated[str, typer.Option("--target", help="What to compile for; `tilegraph targets` lists them.")]
Dim = Annotated[list[str], typer.Option("--dim", metavar="NAME=SIZE", help="Fix a symbolic dim, or say what it "
                                       "follows from (total=past+seq, height=32*h); repeatable.")]
OffloadOption = Annotated[Offload, typer.Option("--offload", help="What goes to compiled kernels: what wins, all that "
                                                "can, or nothing.")]
Disable = Annotated[list[str], typer.Option("--disable", metavar="PASS", help="Leave a pass out; repeatable.")]
Mcpu = Annotated[str | None, typer.Option("--mcpu", help="CPU to compile for instead of this one.")]
PrecisionOption = Annotated[Precision, typer.Option("--precision", help="Of compiled matrix products: bf16 rounds "
                                                    "their operands to bfloat16, sums stay float32.")]
WeightsOption = Annotated[Weights, typer.Option("--weights", help="Round the matrices of products to integers in "
                                                "blocks; the error of each is printed.")]
FastWinograd = Annotated[bool, typer.Option("--fast-winograd", help="3x3 convolutions with fewer products and larger "
                                            "rounding errors, F(4x4, 3x3).")]
TrustHidden = Annotated[bool, typer.Option("--trust-hidden", help="Keys that attention does not see, and their values, "
                                           "are finite: a step of a decoder does not read them.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON (- for stdout).")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="More output, and tracebacks of errors.")]
Inputs = Annotated[Path | None, typer.Option("--inputs", metavar="NPZ", help="Arrays by input name instead of random "
                                             "ones.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of ONNX Runtime.")]


def _version(wanted: bool) -> None:
    if wanted:
        from tilegraph import __version__

        print(f"tilegraph {__version__}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                               help="Print the version.")] = False) -> None:
    pass


@app.command()
def optimize(
    model: Annotated[Path | None, typer.Argument(help="The .onnx file.", show_default=False)] = None,
    target: Target = "cpu",
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; default "
                                                "MODEL.tilegraph beside the model.")] = None,
    dim: Dim = [],  # noqa: B006  (typer copies it)
    embed: Annotated[bool, typer.Option("--embed", help="Write one self-contained .onnx file, not a folder.")] = False,
    offload: OffloadOption = Offload.auto,
    portable: Annotated[bool, typer.Option("--portable", help="Also write portable.onnx, which any ONNX Runtime "
                                           "runs.")] = False,
    list_passes: Annotated[bool, typer.Option("--list-passes", help="Print the target's passes and stop.")] = False,
    disable: Disable = [],  # noqa: B006
    mcpu: Mcpu = None,
    precision: PrecisionOption = Precision.float32,
    weights: WeightsOption = Weights.float32,
    fast_winograd: FastWinograd = False,
    trust_hidden: TrustHidden = False,
    tune: Annotated[bool, typer.Option("--tune", help="Time kernels on this machine with several schedules and "
                                       "against ONNX Runtime; what loses stays with it.")] = False,
    tune_budget: Annotated[float | None, typer.Option("--tune-budget", metavar="SECONDS", min=0.0, help="How long "
                                                      "--tune may measure; default 60.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide everything, compile and write nothing.")] = False,
    dump: Annotated[Path | None, typer.Option("--dump", metavar="DIR", help="Write the model after each pass.")] = None,
    cache_dir: Annotated[Path | None, typer.Option("--cache-dir", metavar="DIR", help="Where compiled kernels are "
                                                   "kept.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the output folder whatever it holds.")] = False,
    json: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write an optimized folder that ONNX Runtime serves."""
    from tilegraph.cli import commands

    commands.optimize(model, target, output, dim, embed, offload.value, portable, list_passes, disable, mcpu,
                      precision.value, weights.value, fast_winograd, trust_hidden, tune, tune_budget, dry_run, dump,
                      cache_dir, force, json, quiet, verbose)


@app.command()
def verify(
    original: Annotated[Path, typer.Argument(help="The original .onnx file.")],
    optimized: Annotated[Path, typer.Argument(help="A .tilegraph folder or an .onnx file.")],
    inputs: Inputs = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many random inputs, of several sizes.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")] = 0,
    rtol: Annotated[float | None, typer.Option("--rtol", help="Relative tolerance, instead of the bound.")] = None,
    atol: Annotated[float | None, typer.Option("--atol", help="Absolute tolerance, instead of the bound.")] = None,
    dim: Dim = [],  # noqa: B006
    threads: Threads = None,
    bisect: Annotated[Path | None, typer.Option("--bisect", metavar="DIR", help="Find what is at fault, and write the "
                                                "smallest model and inputs that show it.")] = None,
    expect_sha256: Annotated[str | None, typer.Option("--expect-sha256", metavar="HEX", help="What optimize printed; "
                                                      "anything else is not loaded.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the result as JUnit XML, for CI "
                                               "servers.")] = None,
    json: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say whether two models give the same answers: exit code 0 same, 1 different, 2 nothing proved."""
    from tilegraph.cli import commands

    raise typer.Exit(commands.verify(original, optimized, inputs, samples, seed, rtol, atol, dim, threads, bisect,
                                     expect_sha256, junit, json, quiet, verbose))


@app.command()
def bench(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help=".onnx files and .tilegraph folders.")],
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of each peer.")] = 1,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Rounds.")] = 30,
    inputs: Inputs = None,
    dim: Dim = [],  # noqa: B006
    json: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Time models side by side; ratios are to the first."""
    from tilegraph.cli import commands

    commands.bench(models, threads, runs, inputs, dim, json, quiet)


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL_OR_DIR", help="An .onnx file or a .tilegraph folder.")],
    target: Target = "cpu",
    dim: Dim = [],  # noqa: B006
    offload: OffloadOption = Offload.auto,
    disable: Disable = [],  # noqa: B006
    mcpu: Mcpu = None,
    precision: PrecisionOption = Precision.float32,
    weights: WeightsOption = Weights.float32,
    fast_winograd: FastWinograd = False,
    trust_hidden: TrustHidden = False,
    inputs: Annotated[Path | None, typer.Option("--inputs", metavar="NPZ", help="Arrays by input name: how dense masks "
                                                "are on them is shown as well.")] = None,
    json: Json = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as a web page.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write it as Markdown.")] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show every decision: what was fused and compiled, what was not, and why."""
    from tilegraph.cli import commands

    commands.explain(model, target, dim, offload.value, disable, mcpu, precision.value, weights.value, fast_winograd,
                     trust_hidden, inputs, json, html, markdown, quiet)


@app.command()
def targets() -> None:
    """List the targets."""
    from tilegraph.cli import commands

    commands.targets()


@app.command("ep-path")
def ep_path() -> None:
    """Print the path of the execution provider's library, for hosts in C, C++, C#, Java and Rust."""
    from tilegraph.cli import commands

    commands.ep_path()


def run(arguments: Sequence[str] | None) -> int:
    """Runs the command line and turns every outcome into an exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbose = bool({"-v", "--verbose"} & set(given))
    if not verbose:
        logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # what it notes about a model, our own errors say better
    try:
        code = app(args=given or ["--help"], prog_name="tilegraph", standalone_mode=False)
        sys.stdout.flush()
        return (code if isinstance(code, int) else 0) if given else 2
    except _ClickException as problem:
        error(problem.format_message())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except (BrokenPipeError, SystemExit):
        # The reader of our stdout went away (typer turns that into SystemExit); keep Python from complaining about it
        # at exit. The code is a shell's for SIGPIPE: 0 and 1 would be answers of verify.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except TilegraphError as problem:
        _trace(verbose)
        error(str(problem) if problem.exit_code != 3 else f"internal: {problem}")
        return problem.exit_code
    except OSError as problem:
        _trace(verbose)
        where = f"{problem.filename}: " if problem.filename else ""
        error(f"{where}{problem.strerror or problem}")
        return 2
    except Exception as problem:
        _trace(verbose)
        hint = "" if verbose else "\nThis is a bug in tilegraph; -v shows the traceback."
        first = (str(problem).strip().splitlines() or [""])[0]
        error(f"internal: {type(problem).__name__}: {first}{hint}")
        return 3


def _trace(verbose: bool) -> None:
    if verbose:
        import traceback

        traceback.print_exc()
